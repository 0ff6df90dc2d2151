"""The client's side."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from coterie.flower import ClientApp
from digits_app.task import Net, load_data, test
from digits_app.task import train as train_net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model in the message on this client's data."""
    net = _net(message)
    images, labels = _data(context, "train")
    config = message.content["config"]
    epochs = int(context.run_config["local-epochs"])
    loss = train_net(net, images, labels, epochs, float(config["rate"]), seed=int(config["server-round"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model in the message on this client's data."""
    images, labels = _data(context, str(message.content["config"].get("coterie-part", "test")))
    loss, accuracy = test(_net(message), images, labels)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _net(message: Message) -> Net:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


def _data(context: Context, part: str) -> tuple[Tensor, Tensor]:
    return load_data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]), part)

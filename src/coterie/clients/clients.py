"""What a program may do on clients: train, evaluate, predict, describe, remember.

`Clients` stands for one client or for many at once. In simulation a program runs on a hundred stacked clients in one
go, on a real site on one. Everything that goes in or comes out has the client as its first axis.

Evaluation saves work in two places. An input that is the same for all clients (`shared=` in `Federation.run`) reaches a
program expanded over them with stride 0: `evaluate` sees that, and runs all clients' data through each model at once.
And what a client is served after a round is often what it chooses from in the next (IFCA, FLIS): a client that is
computed alone remembers how several models last did on its data (`best_fit`).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clients.guard import OPEN, Guard
from coterie.clients.letters import Letter, Letters, Like, checked_content, readable
from coterie.clients.memory import Memory, Value
from coterie.core.errors import CoterieError, SettingsError
from coterie.core.randomness import generator
from coterie.data.moments import Moments
from coterie.data.population import Pool, Shard
from coterie.nets.net import Net
from coterie.nets.stacks import Changes, Models, Stack
from coterie.training.evaluation import EvaluationJob, predictions, rank_and_loss, rows_at_once
from coterie.training.forms import Form
from coterie.training.local import LocalTraining
from coterie.training.loop import Extras, Objective, Terms, Track, Trained, TrainingJob, task_loss
from coterie.training.priors import log_prior


@dataclass(frozen=True)
class CallContext:
    """Where in a run a program is called, as far as clients must know."""

    seed: int = 0
    number: int = 0
    """The round, counted from 1; 0 is before the first."""
    scoring: bool = False
    """Whether this call scores a method, and so may read all test data."""
    keep_last: bool = False
    """Whether clients keep the model that they trained last, for the view `last` of scoring."""
    run: str = ""
    """The name of the run, if several runs can reach the same sites."""
    phase: int = 0
    """The number of the call within the round."""
    prior: float = 0.0
    """The smoothing of the prior that each client adds to what models give for its data; 0 adds none."""
    test_data: bool = False
    """Whether the method may read clients' own test data, as some published protocols do; their tables say so."""


@dataclass(frozen=True)
class Evaluation:
    """How models do on clients' data: [client], or [client, model] where each has several. It lies on the host.

    >>> found = coterie.Evaluation(*map(torch.tensor, ([8, 5], [10, 9], [4.0, 9.0], [10, 10])))
    >>> found.accuracy.tolist(), found.loss.tolist()
    ([0.8, 0.5], [0.4, 0.9])
    """

    correct: Tensor
    """Samples whose label is predicted."""
    correct_top5: Tensor
    """Samples whose label is among the five likeliest."""
    loss_sum: Tensor
    """Cross-entropy, summed over samples."""
    samples: Tensor
    """How many samples there are, [client]."""

    def _per_sample(self, values: Tensor) -> Tensor:
        samples = self.samples.reshape(-1, *[1] * (values.dim() - 1))
        return values.double() / samples  # NaN where there are no samples

    @property
    def accuracy(self) -> Tensor:
        """Share of correct predictions."""
        return self._per_sample(self.correct)

    def accuracy_of(self, top: int) -> Tensor:
        """Share of samples whose label is among the `top` (1 or 5) likeliest."""
        return self.accuracy if top == 1 else self._per_sample(self.correct_top5)

    @property
    def loss(self) -> Tensor:
        """Mean cross-entropy."""
        return self._per_sample(self.loss_sum)


HOME, HOME_WEIGHTS, HOME_BLEND, HOME_PRIOR = "_home", "_home_weights", "_home_blend", "_home_prior"
"""Under these names clients have what they predict with at the end of a run."""

RememberedFits = dict[tuple[str, str], tuple[bytes, Evaluation]]
"""How several models last did on a client's data, by client and part, with a digest of the models."""


class Clients:
    """One client or many, as a program sees them.

    >>> @coterie.program
    ... def count_and_train(clients, start, local):
    ...     return {"model": clients.train(start, local).models, "labels": clients.label_counts()}
    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> replies = fed.run(count_and_train, shared=fed.new_model(), local=coterie.LocalTraining(steps=1))
    >>> replies.labels.shape  # whatever goes in or comes out has the client as its first axis
    torch.Size([3, 10])
    """

    def __init__(
        self,
        net: Net,
        pool: Pool,
        shards: Sequence[Shard],
        form: Form,
        at: CallContext,
        memory: Memory | None = None,
        common: np.ndarray | None = None,
        letters: Letters | None = None,
        known: RememberedFits | None = None,
        guard: Guard = OPEN,
    ) -> None:
        self.guard = guard
        """What the clients hold to, whoever asks."""
        self.net, self._pool, self._shards, self._form, self._at = net, pool, tuple(shards), form, at
        self._memory, self._common = memory or Memory(len(self._shards)), common
        self._received = letters or Letters()
        self._fits: RememberedFits = {} if known is None else known
        self.kept: dict[str, Value] = {}
        """What the program has told the clients to keep."""
        self.written: list[Letter] = []
        """The letters that the program has written."""

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def names(self) -> tuple[str, ...]:
        """What the clients are called."""
        return tuple(shard.name for shard in self._shards)

    @property
    def round(self) -> int:
        """The round, counted from 1."""
        return self._at.number

    @property
    def sizes(self) -> Tensor:
        """Training samples, [client]."""
        return self._counts(self._part("train"))

    def _part(self, part: str) -> list[np.ndarray]:
        """Each client's samples in a part of its data, as places in the pool; `global` is the common test set."""
        allowed = self._at.scoring or (part == "test" and self._at.test_data)
        if part in ("test", "global") and not allowed:
            raise CoterieError("test data is for scoring only: a method can reach train and validation data")
        if part == "global":
            return [np.empty(0, np.int64) if self._common is None else self._common] * len(self)
        if part not in ("train", "validation", "test"):
            raise SettingsError(f"on={part!r}: train or validation")
        return [shard.part(part) for shard in self._shards]

    def _counts(self, parts: Sequence[np.ndarray]) -> Tensor:
        return torch.tensor([len(part) for part in parts], device=self._pool.device)

    def generators(self, purpose: str) -> list[np.random.Generator]:
        """A generator for each client, keyed by purpose, round and client."""
        return [generator(self._at.seed, purpose, self._at.number, name) for name in self.names]

    def initial(self, net: Net | None = None) -> Models:
        """For each client the model that every run of this seed starts from; or, given another net, one of that net."""
        return new_models(net or self.net, self._at.seed).expand(len(self))

    # Remembering

    def state(self, name: str, otherwise: Value | None = None) -> Any:
        """What the clients keep under a name; `otherwise` for those that keep nothing yet."""
        return _sent(self._recalled(name, otherwise), self._pool.device)

    def _recalled(self, name: str, otherwise: Value | None) -> Any:
        """What the clients keep under a name, on whatever device it lies."""
        if name in self.kept:
            return self.kept[name]
        if name not in self._memory:
            if otherwise is None:
                raise CoterieError(f"clients keep nothing under {name!r}: give a value to start from")
            return otherwise
        value, known = self._memory.values[name], self._memory.known[name]
        if known.all():
            return value
        if otherwise is None:
            missing = [client for client, has in zip(self.names, known.tolist(), strict=True) if not has]
            raise CoterieError(f"client {missing[0]} keeps nothing under {name!r}: give a value to start from")
        known = known.reshape(-1, *[1] * (len(value.shape) - 1))
        if isinstance(value, Stack):
            others = otherwise.to(self._pool.device)
            return _sent(value, self._pool.device).where(known, others)
        assert isinstance(otherwise, Tensor)
        return torch.where(known.to(value.device), value, otherwise.to(value))

    def keep(self, **values: Value) -> None:
        """Keep values, one row per client, until a later call changes them. If the round fails, this is undone."""
        for name, value in values.items():
            if not isinstance(value, Value):
                raise CoterieError(f"keep({name}=...): a tensor or models, not {type(value).__name__}")
            if not value.shape or value.shape[0] != len(self):
                raise CoterieError(f"keep({name}=...): shape {tuple(value.shape)} for {len(self)} clients")
            self.kept[name] = value

    def _add(self, name: str, amount: Tensor) -> None:
        """Add an amount [client] to what the clients count for the run's records."""
        self.kept[name] = self._recalled(name, torch.zeros_like(amount)) + amount

    @property
    def steps_taken(self) -> Tensor:
        """Steps that the clients have trained so far in the run, [client], on the host."""
        return self._recalled("_steps", torch.zeros(len(self), dtype=torch.int64))

    @property
    def rounds_taken(self) -> Tensor:
        """Rounds in which the clients have trained so far, [client], on the host."""
        return self._recalled("_rounds", torch.zeros(len(self), dtype=torch.int64))

    def _training_call(self) -> Tensor:
        """The number of this training call within the round, [client]: a part of the key of the client's draws."""
        calls = self._recalled("_calls", torch.tensor([[-1, 0]]).expand(len(self), 2))
        number = torch.where(calls[:, 0] == self.round, calls[:, 1], 0)
        self.kept["_calls"] = torch.stack([torch.full_like(number, self.round), number + 1], dim=1)
        return number

    # Writing to each other

    def write(self, row: int, receiver: str, subject: str, **content: Tensor) -> None:
        """Let the client in this row write tensors to the client of this name, whose programs alone can read them."""
        self.written.append(Letter(self.names[row], receiver, subject, checked_content(content)))

    def letters(self, row: int, subject: str | None = None, **like: Like) -> list[Letter]:
        """The letters that the client in this row got with this call, on one subject or on any, sorted by sender.

        `like` says for each tensor of a letter its type and shape, with None for lengths that may be any. A letter that
        has others, or numbers that are not finite, is left out: what a client writes costs nobody else anything.
        """
        found = [letter for letter in self._received.to(self.names[row]) if subject in (None, letter.subject)]
        fitting = [letter for letter in found if not like or readable(letter, like)]
        return sorted(fitting, key=lambda letter: letter.sender)

    # Training

    def train(
        self,
        start: Models,
        local: LocalTraining,
        *,
        epochs: Tensor | Sequence[float] | None = None,
        pull: float | Tensor = 0.0,
        anchor: Models | None = None,
        push: Changes | None = None,
        trains: str | Iterable[str] = "all",
        objective: Objective = task_loss,
        sample_weights: Tensor | None = None,
        beside: Mapping[str, Tensor] | None = None,
        carried: Mapping[str, Tensor] | None = None,
    ) -> Trained:
        """Train one model per client on the client's own training samples.

        `epochs` [client] replaces the epochs in `local`. `pull * (model - anchor) + push` is added to the gradient; the
        anchor is the start unless another is given. Only the part of the net that `trains` names moves.
        `sample_weights` [client, sample] weigh the samples in the objective. Tensors [client, ...] that are `beside`
        the models are trained with them, at the same rate, if the objective makes something of them; those that are
        `carried` are what the objective is told, and what it hands on from step to step. Both come back with the
        models. Pull, push and `trains` are of the models alone. Models may be of another net than the
        federation's, such as a GAN: their training counts neither as steps nor as a round of the client, and can happen
        once in a round, because its draws are keyed by the round and the net alone.
        """
        if start.shape != (len(self),):
            raise CoterieError(
                f"start of shape {start.shape} for {len(self)} clients: training takes one model for each"
            )
        purpose = (self._at.seed, "train", self.round)
        terms = Terms.of(start, pull, anchor, push, trains)
        own = start.net.parameters == self.net.parameters
        calls = self._training_call().tolist() if own else [start.net.name] * len(self)
        keys = [(*purpose, name, call) for name, call in zip(self.names, calls, strict=True)]
        tracks = self._tracks(keys, local, epochs, local.own_prior if own else 0.0)
        beside, carried = beside or {}, carried or {}
        extras = Extras.of(beside, carried)
        if extras:
            start = Extras.joined(start, beside, carried)
            terms = terms.widened(start.parameters.shape[1] - start.net.parameters.total)
        trained = self._train(TrainingJob(self._pool, tracks, start, terms, objective, sample_weights, extras))
        if not own:
            return trained
        self._add("_steps", torch.tensor([track.steps for track in tracks]))
        self._add("_rounds", (torch.tensor(calls) == 0).long())
        if self._at.keep_last:
            self.kept["_last"] = trained.models
        return trained

    def adapt(self, start: Models, local: LocalTraining, trains: str = "all", stage: int = 0) -> Models:
        """Models after some local training that leaves no trace: for scoring, and for trying something out.

        Several trainings, one after another, are stages: each draws its own batches.
        """
        keys = [(self._at.seed, "adapt", self.round, name, stage) for name in self.names]
        tracks = self._tracks(keys, local, smoothing=local.own_prior, leaves=False)
        terms = Terms.of(start, 0.0, None, None, trains)
        return self._train(TrainingJob(self._pool, tracks, start, terms, task_loss)).models

    def _tracks(
        self,
        keys: Sequence[tuple[Any, ...]],
        local: LocalTraining,
        epochs: Tensor | Sequence[float] | None = None,
        smoothing: float = 0.0,
        leaves: bool = True,
    ) -> list[Track]:
        """The clients as tracks of the training loop, whose random draws have these keys.

        With a `smoothing` their own priors are kept out of the models. `leaves` says whether anybody learns the result.
        """
        priors = self.log_prior(smoothing) if smoothing else [None] * len(self)
        passes = [None] * len(self) if epochs is None else torch.as_tensor(epochs, dtype=torch.float64).tolist()
        for shard in self._shards:
            if not len(shard.train):
                raise CoterieError(f"client {shard.name} has no training samples")
        tracks = [
            Track(shard.train, key, local.steps_for(len(shard.train), number), local, prior)
            for shard, key, number, prior in zip(self._shards, keys, passes, priors, strict=True)
        ]
        for shard, track in zip(self._shards, tracks, strict=True):
            self.guard.check_training(len(shard.train), track.steps, local.batch, leaves)
        return tracks

    def _train(self, job: TrainingJob) -> Trained:
        models, losses = self._form.train(job)
        beside: Mapping[str, Tensor] = {}
        carried: Mapping[str, Tensor] = {}
        if job.extras:
            *tensors, beside, carried = job.extras.split(models.net, *models.tensors)
            models = Models(models.net, *tensors)
        # As float64: whole numbers would make torch compute `steps * rate` in float32, whatever the models are in.
        steps = torch.tensor([track.steps for track in job.tracks], dtype=torch.float64, device=job.pool.device)
        return Trained(models, steps, losses, self.sizes, beside, carried)

    # Evaluating and describing

    def evaluate(
        self, models: Models, on: str = "train", mixture: Tensor | None = None, blend: bool = False
    ) -> Evaluation:
        """How one model per client [client], or several [client, model], do on the clients' own data.

        With a `mixture` [client, model] each client's models are one predictor: the mean of their probabilities, with
        these weights; or, as a `blend`, the mean of their outputs before the softmax.
        """
        return self.evaluate_each(models, (on,), mixture, blend)[0]

    def evaluate_each(
        self, models: Models, parts: Sequence[str], mixture: Tensor | None = None, blend: bool = False
    ) -> tuple[Evaluation, ...]:
        """What `evaluate` gives for each of several parts of the clients' data, computed in one go."""
        self._check_stack(models)
        several = len(models.shape) > 1 and mixture is None
        stack = models if len(models.shape) > 1 else models.inserted(1)
        samples = self._samples(parts)
        counts = torch.from_numpy(samples.sizes).reshape(len(self), -1)
        rank, loss = self._ranked(stack, samples, mixture, blend).numpy()  # [model, sample]
        # Summed on the host, client by client and part by part, so that the last bits depend on nothing else.
        hits = (np.where(np.isnan(rank), np.nan, rank < most) for most in (1, 5))
        scores = np.stack([*hits, loss], dtype=np.float64, casting="unsafe")
        totals = np.zeros((3, len(scores[0]), len(samples.sizes)))
        there = samples.sizes > 0
        if there.any():
            totals[:, :, there] = np.add.reduceat(scores, samples.first[there], axis=2)
        sums = torch.from_numpy(totals.reshape(3, -1, len(self), len(parts))).movedim(1, -1)
        correct, correct_top5, loss_sum = (sums if several else sums[..., 0]).transpose(1, 2)  # [part, client, ...]
        return tuple(map(Evaluation, correct, correct_top5, loss_sum, counts.T))

    def best_fit(self, models: Models, on: str = "train") -> Tensor:
        """Which of several models per client has the lowest loss on its own data, [client].

        Of equals it is the first; a loss that is not a number is never the lowest. A client that has no samples in the
        part `on` goes by its training data.
        """
        if models.shape[1] == 1:
            return torch.zeros(len(self), dtype=torch.int64)
        return self.mean_losses(models, on).nan_to_num(nan=torch.inf).argmin(dim=1)

    def mean_losses(self, models: Models, on: str = "train") -> Tensor:
        """The mean loss of several models per client on its own data, [client, model], on the host.

        A client that has no samples in the part `on` goes by its training data.
        """
        result = self._evaluated(models, on)
        if on == "train" or (result.samples > 0).all():
            return result.loss
        return torch.where(result.samples[:, None] > 0, result.loss, self._evaluated(models, "train").loss)

    def _evaluated(self, models: Models, on: str) -> Evaluation:
        """What `evaluate` gives; a client that is computed alone remembers it for the next time it is asked.

        Computed among others, a client remembers nothing: its last bits depend on who these are, so those of a resumed
        run would depend on where it was resumed. Nor does it on test data, where it matters who asks.
        """
        if len(self) > 1 or on not in ("train", "validation"):
            return self.evaluate(models, on)
        key, digest = (self.names[0], on), _digest(models, self._at.prior)
        if key not in self._fits or self._fits[key][0] != digest:
            self._fits[key] = digest, self.evaluate(models, on)
        return self._fits[key][1]

    def losses(self, models: Models, on: str = "train") -> Tensor:
        """Cross-entropy of every sample under several models per client, [client, model, sample].

        The samples are in the order in which `Batch.index` counts them; a client with fewer than the others has NaN
        behind its last one. Nothing is augmented and no noise is drawn.
        """
        self._check_stack(models)
        if len(models.shape) != 2:
            raise CoterieError(f"models of shape {models.shape}: losses are of several models per client")
        samples = self._samples((on,))
        values = torch.full((len(self), models.shape[1], max(samples.sizes)), torch.nan, dtype=torch.float64)
        values[samples.owner, :, samples.place] = self._ranked(models, samples)[1].double().T
        return values.to(self._pool.device)

    def blended_losses(self, models: Models, blends: Tensor, on: str = "train") -> Tensor:
        """Cross-entropy of every sample under blends of several models per client, [client, blend, sample].

        A blend weighs the models' outputs: `blends` [blend, model]. Models are [client, model]; a client with fewer
        samples than the others has NaN behind its last one.
        """
        self._check_stack(models)
        samples, task = self._samples((on,)), self.net.task
        values = torch.full((len(self), len(blends), max(samples.sizes)), torch.nan, dtype=torch.float64)
        if len(samples.every):
            job, rows, place = self._job(models, samples, self.prior)
            outputs = predictions(self._form.outputs, job)[rows, place]  # [model, sample, output]
            labels = self._pool.y[torch.from_numpy(samples.every).to(self._pool.device)]
            weights = blends.to(outputs).unsqueeze(-1)  # [blend, model, 1]
            losses = torch.stack([task.losses(task.blended(outputs, own), labels) for own in weights])
            values[samples.owner, :, samples.place] = losses.double().cpu().T
        return values.to(self._pool.device)

    def _samples(self, parts: Sequence[str]) -> "_PartSamples":
        """The clients' samples in these parts of their data."""
        found = [self._part(part) for part in parts]
        return _PartSamples.of(found) if "global" in parts else _samples_of(self._shards, tuple(parts))

    def _ranked(
        self, models: Models, samples: "_PartSamples", mixture: Tensor | None = None, blend: bool = False
    ) -> Tensor:
        """Rank and loss of all samples of all clients, one after another, under models [client, model].

        The result is [2, model, sample], on the host. With a `mixture` [client, model] the models are one predictor.
        """
        job, rows, place = self._job(models, samples, self.prior)
        if mixture is None:
            return self._form.evaluate(job)[:, rows, place]
        labels = self._pool.y[torch.from_numpy(samples.every).to(self._pool.device)]
        outputs = self._mixed_outputs(job, rows, place, samples, mixture, blend)
        return rank_and_loss(self.net.task, outputs[None], labels).cpu()

    def _job(self, models: Models, samples: "_PartSamples", prior: Tensor | None) -> tuple[EvaluationJob, Any, Any]:
        """The job that computes samples under models [client, model], and where in its results they stand.

        A `prior` [client, class] is added to what the models give.
        """
        owner = torch.from_numpy(samples.owner)
        rows: Any = slice(None)
        place: Any = slice(None)
        # With stride 0 all clients have the same models: all data goes through each of them at once.
        if len(self) == 1 or models.parameters.stride(0) == 0:
            # A sample that several clients have, as in a common test set, is computed once, unless their priors differ.
            once = samples.once if prior is None else samples.every
            own_prior = None if prior is None else prior[owner.to(prior.device)]
            job = EvaluationJob(self._pool, models[0], [once] * models.shape[1], own_prior)
            if samples.number is not None and prior is None:
                place = torch.from_numpy(samples.number)
        else:
            columns = models.shape[1]
            places = [own for own in samples.each for _ in range(columns)]
            own_prior = None if prior is None else prior.repeat_interleave(columns, dim=0)
            job = EvaluationJob(self._pool, models.flattened(), places, own_prior)
            rows, place = owner * columns + torch.arange(columns)[:, None], torch.from_numpy(samples.place)
        return job, rows, place

    def _mixed_outputs(
        self, job: EvaluationJob, rows: Any, place: Any, samples: "_PartSamples", mixture: Tensor, blend: bool
    ) -> Tensor:
        """The outputs [sample, output] of a mixture [client, model] of the models of a job."""
        outputs = predictions(self._form.outputs, job)[rows, place]
        weights = mixture[torch.from_numpy(samples.owner).to(mixture.device)].T
        task = self.net.task
        return task.blended(outputs, weights) if blend else task.mixed(outputs, weights)

    def predictions(
        self, models: Models, on: str = "train", mixture: Tensor | None = None, blend: bool = False
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each client the targets of a part of its data, and what its model predicts, in the data's own units.

        There is one model per client [client], or a `mixture` [client, model] of several, which may be a `blend` (see
        `evaluate`). Predictions are probabilities [sample, class] or numbers [sample, number].
        """
        self._check_stack(models)
        stack = models if len(models.shape) > 1 else models.inserted(1)
        if mixture is None:
            mixture = torch.ones(len(self), 1, dtype=torch.float64)
        samples = self._samples((on,))
        if not len(samples.every):
            return [(np.empty(0), np.empty(0))] * len(self)
        outputs = self._mixed_outputs(*self._job(stack, samples, self.prior), samples, mixture, blend)
        y = self._pool.y[torch.from_numpy(samples.every).to(self._pool.device)]
        if y.is_floating_point():
            y, outputs = self._pool.in_units(y), self._pool.in_units(outputs)
        cuts = samples.first[1:]
        truth, predicted = y.cpu().numpy(), self.net.task.predicted(outputs).double().cpu().numpy()
        return list(zip(np.split(truth, cuts), np.split(predicted, cuts), strict=True))

    def take_home(self, models: Models, weights: Tensor | None = None, blend: bool = False) -> None:
        """Let clients have the models [client] with which they predict, or those [client, model] that they mix."""
        self.kept[HOME] = models
        if weights is not None:
            self.kept[HOME_WEIGHTS] = weights
        if blend:
            self.kept[HOME_BLEND] = torch.ones(len(self), dtype=torch.bool)
        if self.prior is not None:
            self.kept[HOME_PRIOR] = self.prior

    def moments(self) -> Tensor:
        """Counts, sums and sums of squares of raw inputs and numbers to predict, [client, 3, channel], on the host.

        They are over training samples, and missing values do not count.
        """
        found = []
        for part in self._part("train"):
            places = torch.from_numpy(part).to(self._pool.device)
            x = self._pool.x[places].flatten(0, -2)  # the channel is the last axis of all inputs in a pool
            rows = [x, self._pool.y[places]] if self._pool.y.dim() > 1 else [x]
            own = [Moments.of(values.cpu().numpy()) for values in rows]
            found.append(np.concatenate([[one.count, one.total, one.squares] for one in own], axis=1))
        return torch.from_numpy(np.stack(found))

    def samples(self, row: int, on: str = "train") -> tuple[Tensor, Tensor]:
        """The prepared inputs [sample, ...] and labels [sample] of the client in this row."""
        index = torch.from_numpy(self._part(on)[row]).to(self._pool.device)
        return self._pool.inputs(index), self._pool.y[index]

    def inputs(self, on: str = "train") -> Tensor:
        """The clients' prepared inputs [client, row, ...]; all must have the same number of samples."""
        parts = self._part(on)
        if len({len(part) for part in parts}) > 1:
            raise CoterieError("inputs: the clients have unequal numbers of samples, which do not fit in one tensor")
        return self._pool.inputs(torch.from_numpy(np.stack(parts)).to(self._pool.device))

    def predict(self, models: Models, inputs: Tensor) -> Tensor:
        """What models [client] or [client, model] give for prepared inputs [client, row, ...].

        The result is [client, row, class] or [client, model, row, class], before the softmax.
        """
        self._check_stack(models)
        if len(models.shape) > 1:
            columns = [self.predict(models[:, column], inputs) for column in range(models.shape[1])]
            return torch.stack(columns, dim=1)
        blocks = inputs.to(self.net.dtype).split(rows_at_once(self.net, len(self)), dim=1)
        return torch.cat([self._form.outputs(models, block, shared=False) for block in blocks], dim=1)

    def labels(self, on: str = "train") -> Tensor:
        """The label of every sample, [client, sample], in the order of `losses`; -1 behind a client's last one."""
        if not self.net.task.one_class:
            raise CoterieError(f"labels: task={self.net.task.name} has no classes")
        samples = self._samples((on,))
        found = torch.full((len(self), max(samples.sizes)), -1)
        found[samples.owner, samples.place] = self._pool.y[torch.from_numpy(samples.every).to(self._pool.device)].cpu()
        return found.to(self._pool.device)

    def label_counts(self, on: str = "train") -> Tensor:
        """How often each client has each label, [client, class]."""
        if not self.net.task.one_class:
            raise CoterieError(f"label counts: task={self.net.task.name} has no classes to count")
        parts, classes = self._part(on), self.net.classes
        labels = self._pool.y[torch.from_numpy(np.concatenate(parts)).to(self._pool.device)]
        owner = torch.arange(len(parts), device=labels.device).repeat_interleave(self._counts(parts))
        return torch.bincount(owner * classes + labels, minlength=len(parts) * classes).reshape(-1, classes)

    def class_means(self, models: Models, on: str = "train") -> tuple[Tensor, Tensor]:
        """Means over the samples of each class: their features [client, class, feature], and their squared lengths.

        Features are what the last layer of the client's model gets; squared lengths are [client, class]. A class of
        which a client has no sample has zeros. All is in float64 on the host.
        """
        self._check_stack(models)
        samples, classes, width = self._samples((on,)), self.net.classes, self.net.features
        labels = self._pool.y[torch.from_numpy(samples.every).to(self._pool.device)].cpu().numpy()
        job, rows, place = self._job(Models(self.net.up_to_head, *models.tensors).inserted(1), samples, None)
        found = predictions(self._form.outputs, job)[rows, place][0].double().cpu().numpy()
        values = np.hstack([found, np.square(found).sum(axis=1, keepdims=True)])
        # Summed on the host, class by class, so that the last bits depend on nothing else.
        group = samples.owner * classes + labels
        order = np.argsort(group, kind="stable")
        there, first, count = np.unique(group[order], return_index=True, return_counts=True)
        means = np.zeros((len(self) * classes, width + 1))
        if len(there):
            means[there] = np.add.reduceat(values[order], first) / count[:, None]
        result = torch.from_numpy(means.reshape(len(self), classes, width + 1))
        return result[..., :-1], result[..., -1]

    def log_prior(self, smoothing: float) -> Tensor:
        """What each client's shares of labels add to outputs, [client, class] (see `coterie.training.priors`)."""
        return log_prior(self.label_counts(), smoothing).to(self.net.dtype)

    @cached_property
    def prior(self) -> Tensor | None:
        """What clients add to what models give for their own data, [client, class]; None if they add nothing."""
        return self.log_prior(self._at.prior) if self._at.prior else None

    def _check_stack(self, models: Models) -> None:
        if not models.shape or models.shape[0] != len(self):
            raise CoterieError(f"models of shape {models.shape} for {len(self)} clients: the first axis is the client")


def _digest(models: Models, prior: float) -> bytes:
    """A digest of all numbers of models, by which they are recognised, and of the smoothing of what is added."""
    total = hashlib.sha256(str(prior).encode())
    for tensor in models.tensors:
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.digest()


def _sent(value: Value, device: torch.device) -> Any:
    """A value on a device. To a GPU it is sent without waiting until it is there."""
    return value.to(device, non_blocking=device.type == "cuda")


@dataclass(frozen=True, eq=False)
class _PartSamples:
    """The samples of clients in some parts of their data, client after client, and each client's part after part."""

    each: list[np.ndarray]
    """For each client its samples, as places in the pool."""
    every: np.ndarray
    """All these samples in one row."""
    sizes: np.ndarray
    """How many samples each client has in each part: first the first client's parts, then the second's."""
    first: np.ndarray
    """For each of these parts, where it begins in `every`."""
    owner: np.ndarray
    """For each sample in `every`, the client it belongs to."""
    place: np.ndarray
    """For each sample in `every`, its place among its client's own."""
    once: np.ndarray
    """The samples without repetitions."""
    number: np.ndarray | None
    """For each sample in `every`, its place in `once`; None if no sample is repeated."""

    @classmethod
    def of(cls, parts: Sequence[Sequence[np.ndarray]]) -> "_PartSamples":
        """The samples of clients, given as [part][client]."""
        each = list(parts[0]) if len(parts) == 1 else [np.concatenate(own) for own in zip(*parts, strict=True)]
        every = np.concatenate(each)
        sizes = np.array([len(part) for own in zip(*parts, strict=True) for part in own])
        own = np.array([len(samples) for samples in each])
        owner = np.repeat(np.arange(len(each)), own)
        place = np.arange(len(every)) - (np.cumsum(own) - own)[owner]
        once = np.unique(every)
        repeated = len(once) < len(every)
        number = np.searchsorted(once, every) if repeated else None
        first = np.cumsum(sizes) - sizes
        return cls(each, every, sizes, first, owner, place, once if repeated else every, number)


@lru_cache(maxsize=32)
def _samples_of(shards: Sequence[Shard], parts: Sequence[str]) -> _PartSamples:
    """The samples of these clients in parts of their own data, remembered from one evaluation to the next."""
    return _PartSamples.of([[shard.part(part) for shard in shards] for part in parts])


def new_models(net: Net, seed: int, count: int | None = None, first: int = 0) -> Models:
    """Freshly initialised models, [count], or without a count a single one.

    A seed has one model for each number from 0 on; these are the ones from number `first` on.
    """
    numbers = range(first, first + (count or 1))
    rows = [Models(net, *net.new(seed, number)) for number in numbers]
    return rows[0] if count is None else Models.stack(rows)

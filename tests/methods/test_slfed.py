"""SLFed: what crosses and who can read it, the mixed models, reductions, faults, small federations."""

import secrets
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie import Clients, program, sharing, trust
from coterie.clients.letters import Letters
from coterie.clients.synthesis import last_refresh
from coterie.core.errors import SettingsError
from coterie.data import Split
from coterie.methods import slfed
from coterie.moves import encounters
from coterie.moves.evidence import prediction_similarity
from coterie.moves.mixing import personal
from coterie.nets.stacks import Stack
from coterie.server.federation import KEPT_FINITE, Answers
from support.worlds import mlp, world

QUICK = {"synthetic": 40, "gan_steps": 10, "batch": 8}


def data(samples=240, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 5)).astype(np.float32)
    return coterie.Dataset(x, (x @ rng.normal(size=(5, 3))).argmax(1), labels=tuple("abc"))


def federation(clients=8, net="logistic", **options):
    options = {"precision": "float64", "alpha": 0.7, "min_size": 6, **options}
    return coterie.simulate(data(), "dirichlet", net, clients=clients, **options)


def given(parts, **options):
    """Clients with these samples each, in float64."""
    return coterie.simulate(data(), Split(tuple(parts)), "logistic", precision="float64", **options)


@program
def kept(clients: Clients, names: tuple):
    """The models that clients keep and trained last, and what they note about each other."""
    table = torch.from_numpy(encounters.recall(clients, names))
    model = clients.state("model", clients.initial())
    return {"model": model, "last": clients.state("_last", model), "table": table}


def ends(fed, **options):
    """What clients have after a run, with the run's result."""
    made = coterie.SLFed(**QUICK | options)
    result = made.fit(fed, scoring=coterie.Scoring(views=("last",)))
    return result, fed.run(kept, names=tuple(fed.names))


def numbers(models):
    return torch.cat(models.tensors, dim=1)


# What crosses


class Sealed:
    """An engine like a real network's: letters are sealed while they are with the server, and all that crosses is kept.

    `lost` names clients that do not answer a program, `never` letters (sender, receiver, subject) that do not arrive.
    """

    real = True

    def __init__(self, engine, lost=(), never=()):
        self._inner, self._safe, self.lost, self.never = engine, {}, dict(lost), set(never)
        self.spoil = lambda letter: letter
        self.calls, self.answers, self.letters = [], [], []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def run(self, call):
        """Open the letters of a call, let it run, and seal what was written."""
        self.calls.append(call)
        arrived = [at for at in call.letters._letters if (at.sender, at.receiver, at.subject) not in self.never]
        opened = [self.spoil(replace(letter, content=self._safe.pop(letter.content))) for letter in arrived]
        gone = [self.names.index(name) for name, where in self.lost.items() if where == call.program.function.__name__]
        there = ~np.isin(call.clients, gone)
        rows = torch.from_numpy(np.flatnonzero(there))
        each = {name: value[rows] for name, value in call.each.items()}
        answers = self._inner.run(replace(call, clients=call.clients[there], each=each, letters=Letters(opened)))
        self.letters += answers.letters._letters
        sealed = []
        for letter in answers.letters._letters:
            token = secrets.token_bytes(8)
            self._safe[token] = letter.content
            sealed.append(replace(letter, content=token))
        self.answers.append(Answers(answers.clients, answers.outputs, Letters(sealed)))
        return self.answers[-1]


def sealed(fed, **options):
    fed._engine = Sealed(fed._engine, **options)
    return fed


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_the_server_never_opens_a_letter_and_everything_still_comes_out(engine):
    # In the loop form every client is alone in its call, as on a real site.
    _, plain = ends(federation(engine=engine), rounds=3, rehearse=True)
    fed = sealed(federation(engine=engine))
    _, through_server = ends(fed, rounds=3)
    assert torch.equal(plain.model.parameters, through_server.model.parameters)
    assert torch.equal(plain.table, through_server.table)


def test_all_that_the_server_sees_is_who_is_well_and_who_meets_whom():
    fed = sealed(federation())
    coterie.SLFed(rounds=3, **QUICK).fit(fed)
    asked = [call for call in fed._engine.calls if not call.at.scoring]
    assert {name for call in asked for name in (*call.each, *call.shared)} == {"links"}
    assert not any(isinstance(value, torch.Tensor | Stack) for call in asked for value in call.settings.values())
    answered = [a for call, a in zip(fed._engine.calls, fed._engine.answers, strict=True) if not call.at.scoring]
    outputs = [(name, value) for answers in answered for name, value in answers.outputs.items()]
    assert {name for name, _ in outputs} == {"well", KEPT_FINITE}
    assert all((value == 1).all() for _, value in outputs)
    assert all(isinstance(at.content, bytes) for answers in answered for at in answers.letters._letters)
    assert {at.subject for at in fed._engine.letters} == {"samples", "counts", "opinions", "request", "share", "sum"}


def likeness(mode):
    """The strongest likeness, as a cosine, of anything that any client ever read with another client's model."""
    fed = sealed(federation(net=lambda shape, classes: nn.Sequential(nn.Linear(5, 200), nn.ReLU(), nn.Linear(200, 3))))
    strongest = 0.0
    made = coterie.SLFed(rounds=1, sharing=mode, **QUICK)
    made.fit(fed, scoring=coterie.Scoring(views=("last",)))
    models = numbers(fed.run(kept, names=tuple(fed.names)).last)
    sizes = [*fed.net.parameters.sizes]
    for letter in fed._engine.letters:
        for tensor in letter.content.values():
            if tensor.numel() == models.shape[1]:
                values = tensor.double() / tensor.double().abs().max()
                for part, whose in zip(values.split(sizes), models.T.split(sizes), strict=True):
                    if len(part) > 500:
                        cosines = torch.nn.functional.cosine_similarity(part[:, None], whose, dim=0)
                        strongest = max(strongest, float(cosines.abs().max()))
    assert any(letter.subject == "sum" for letter in fed._engine.letters)
    return strongest


def test_no_client_ever_sees_anything_like_anothers_model():
    # Layers of 1000 and 600 numbers: what is uniformly random has a cosine of about 1/sqrt(600) with anything.
    assert likeness("additive") < 6 / np.sqrt(600)


@pytest.mark.parametrize("mode", ["scalar", "none"])
def test_that_check_finds_a_model_where_there_is_one(mode):
    # The paper's shares and plain models are what the check is for.
    assert likeness(mode) == pytest.approx(1, abs=1e-6)


WRONG = {
    "samples": [
        {},
        {"samples": torch.zeros(40, 4, dtype=torch.uint8)},
        {"samples": torch.zeros(4000, 5, dtype=torch.uint8)},
        {"bounds": torch.tensor([0.0, torch.nan], dtype=torch.float64)},
        {"counts": torch.ones(7, dtype=torch.int64)},
    ],
    "counts": [{}, {"counts": torch.ones(4, 4)}, {"counts": torch.full((3,), torch.nan)}, {"counts": torch.ones(1)}],
    "opinions": [
        {},
        {"opinions": torch.full((8, 3), 1e30, dtype=torch.float64)},
        {"opinions": torch.full((8, 3), -1.0, dtype=torch.float64)},
        {"opinions": torch.full((8, 3), torch.inf, dtype=torch.float64)},
        {"opinions": torch.ones(2, 3, dtype=torch.float64)},
    ],
    "request": [{}, {"weights": torch.full((3,), 1e30, dtype=torch.float64)}, {"contributors": torch.ones(0)}],
    "share": [{}, {"values": torch.ones(3)}, {"asking": torch.tensor([1, 2])}],
    "sum": [{}, {"values": torch.ones(18) * torch.nan}, {"values": torch.ones(3, dtype=torch.int64)}],
}


@pytest.mark.parametrize(("subject", "change"), [(subject, at) for subject, all_ in WRONG.items() for at in all_])
def test_letters_with_wrong_content_stop_nobody(subject, change):
    """One of eight writes nonsense in a round, with tensors missing, of other widths, or with other numbers."""
    fed, culprit = sealed(federation()), []

    def spoil(letter):
        if letter.subject != subject or letter.sender != (culprit or [letter.sender])[0]:
            return letter
        culprit[:] = [letter.sender]
        return replace(letter, content={**letter.content, **change} if change else {})

    fed._engine.spoil = spoil
    _, end = ends(fed, rounds=1)
    assert culprit
    assert numbers(end.model).isfinite().all()
    _, honest = ends(federation(), rounds=1, rehearse=True)
    others = [row for row, name in enumerate(fed.names) if name not in culprit]
    if subject in ("request", "share", "sum"):
        assert torch.equal(end.table, honest.table)
    else:  # what all others have seen of each other is as if nothing had been
        seen = end.table[others][:, others, encounters.EVIDENCE]
        assert torch.equal(seen, honest.table[others][:, others, encounters.EVIDENCE])


def test_letters_go_only_to_those_they_are_for():
    fed = sealed(federation())
    coterie.SLFed(rounds=2, **QUICK).fit(fed)
    meetings = {frozenset((at.sender, at.receiver)) for at in fed._engine.letters if at.subject == "samples"}
    for letter in fed._engine.letters:
        assert letter.sender != letter.receiver
        if letter.subject in ("counts", "opinions"):
            assert frozenset((letter.sender, letter.receiver)) in meetings
        if letter.subject == "request":
            listed = letter.content["contributors"]
            assert len(listed) >= 2
            assert fed.names.index(letter.receiver) in listed
            assert fed.names.index(letter.sender) not in listed


def test_a_requester_that_colludes_with_all_other_contributors_learns_the_last_model():
    # The threat model's limit: taking the colluders' own terms off the sum leaves one.
    models, weights = torch.randn(3, 50, dtype=torch.float64), [0.3, 0.5, 0.9]
    shares = np.stack([sharing.split(w * m, 3) for w, m in zip(weights, models, strict=True)])
    total = sharing.combine(shares.sum(axis=0))
    left = (torch.from_numpy(total) - weights[0] * models[0] - weights[1] * models[1]) / weights[2]
    assert (left - models[2]).abs().max() < 1e-8


def test_the_key_of_the_shares_is_gone_after_the_round():
    fed = federation()
    ends(fed, rounds=1, rehearse=True)
    pledges = {name: value for name, value in fed._engine._memory.values.items() if name.startswith("pledge for ")}
    assert pledges
    assert not any(value.any() for value in pledges.values())


# Rehearsed and computed directly


@pytest.mark.parametrize(
    ("mode", "opinions"), [("additive", "direct"), ("additive", "persistent"), ("scalar", "direct"), ("none", "direct")]
)
def test_rehearsing_gives_the_same_models_and_the_same_bill(mode, opinions):
    direct, models = ends(federation(), rounds=3, sharing=mode, opinions=opinions)
    rehearsed, models_too = ends(federation(), rounds=3, sharing=mode, opinions=opinions, rehearse=True)
    # Rounded to half a step for every contributor, over three rounds.
    allowed = 3 * 8 * sharing.STEP if mode == "additive" else 1e-12
    assert (numbers(models.model) - numbers(models_too.model)).abs().max() <= allowed
    columns = [*range(5), encounters.SIGMA]
    assert torch.allclose(models.table[..., columns], models_too.table[..., columns], atol=1e-12)
    peer, peer_too = direct.summary["ledger"]["peer"], rehearsed.summary["ledger"]["peer"]
    assert peer == peer_too
    assert ("share" in peer) == (mode != "none")
    assert direct.summary["ledger"]["up"] == rehearsed.summary["ledger"]["up"]
    assert direct.summary["ledger"]["down"] == rehearsed.summary["ledger"]["down"]


def test_running_statistics_are_mixed_and_shared_too():
    def net(shape, classes):
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes))

    _, direct = ends(federation(net=net), rounds=2)
    _, rehearsed = ends(federation(net=net), rounds=2, rehearse=True)
    assert (direct.model.buffers - rehearsed.model.buffers).abs().max() <= 16 * sharing.STEP
    variances = direct.model.net.buffers.views(direct.model.buffers)["1.running_var"]
    assert (variances > 0).all()
    assert not torch.equal(direct.model.buffers, direct.last.buffers)


def test_n_contributors_send_n_times_n_messages_of_a_models_size():
    # The note's example: 50 clients with 25 contributors each are 31,250 messages.
    fed = federation(net="mlp")
    coterie.SLFed()._charge(fed, torch.full((50,), 25))
    peer = fed.ledger.by_kind()["peer"]
    size = 8 * fed.net.parameters.total
    lists = 50 * 25 * 24 * (8 + 8 * 25)
    assert (peer["share"] - lists + peer["sum"]) / size == 31_250
    assert peer["request"] == 50 * 25 * 16 * 25


# The mixed models


def test_a_mixed_model_is_eq_19_of_the_trained_ones():
    _, end = ends(federation(), rounds=1)
    trained, sigma = numbers(end.last), end.table[..., encounters.SIGMA]
    assert (sigma > 0).sum(dim=1).max() >= 2
    for row, weights in enumerate(sigma):
        expected = (trained[row] + weights @ trained) / (1 + weights.sum())
        assert torch.allclose(numbers(end.model)[row], expected, atol=1e-12)
    assert torch.allclose(numbers(end.model), personal(sigma) @ trained, atol=1e-12)


def test_a_mixed_model_lies_among_the_trained_ones():
    _, end = ends(federation(), rounds=3)
    trained, mixed = numbers(end.last), numbers(end.model)
    assert (mixed <= trained.amax(dim=0) + 1e-12).all()
    assert (mixed >= trained.amin(dim=0) - 1e-12).all()


def test_weights_are_the_similarities_of_those_whose_uncertainty_is_low_enough():
    _, end = ends(federation(clients=12), rounds=4, opinions="persistent")
    opinions = end.table[..., encounters.OPINION].numpy()
    chosen = trust.trusted(opinions)
    chosen &= chosen.sum(axis=1, keepdims=True) > 1
    assert (end.table[..., encounters.SIGMA].numpy() == np.where(chosen, opinions[..., 0], 0)).all()
    assert (end.table[..., encounters.SIGMA].diagonal() == 0).all()
    assert (opinions[range(12), range(12)] == trust.NOTHING).all()


def test_evidence_is_the_similarity_of_the_counts_that_were_swapped():
    fed = sealed(federation())
    _, end = ends(fed, rounds=1)
    own, seen = {}, {}
    for letter in fed._engine.letters:
        if letter.subject == "samples":
            own[letter.sender] = letter.content["counts"]
        if letter.subject == "counts":
            seen[letter.sender, letter.receiver] = letter.content[
                "counts"
            ]  # the sender's model, the receiver's samples
    evidence = end.table[..., encounters.EVIDENCE] - 1
    for a, b in seen:
        expected = prediction_similarity(own[a], seen[b, a], seen[a, b], own[b])
        found = evidence[fed.names.index(a), fed.names.index(b)]
        assert found.tolist() == pytest.approx([float(expected), 1 - float(expected)])
    met = (evidence.sum(dim=2) > 0).sum().item()
    assert met == len(seen) > 0
    assert torch.allclose(evidence, evidence.transpose(0, 1))  # lambda is symmetric


def test_opinions_come_from_meetings_and_from_what_was_told():
    fed = sealed(federation())
    _, end = ends(fed, rounds=1, opinions="persistent")
    table = end.table.numpy()
    _, direct = trust.met(
        np.ones((8, 8, 2)),
        np.tile(trust.NOTHING, (8, 8, 1)),
        np.where(table[..., 0] + table[..., 1] > 2, table[..., 0] - 1, np.nan),
    )
    told = {name: {} for name in fed.names}
    for letter in fed._engine.letters:
        if letter.subject == "opinions":
            told[letter.receiver][fed.names.index(letter.sender)] = letter.content["opinions"].numpy()
    for me, name in enumerate(fed.names):
        assert all(np.allclose(opinions, direct[other]) for other, opinions in told[name].items())
        assert table[me, :, encounters.OPINION] == pytest.approx(trust.heard(direct[me], me, told[name]))


def test_what_was_told_is_kept_only_if_opinions_are_persistent():
    fed = sealed(federation())
    _, end = ends(fed, rounds=3)
    table = end.table.numpy()
    seen = table[..., encounters.EVIDENCE].sum(axis=2, keepdims=True) > 2
    own = np.where(seen, trust.opinion(table[..., 0], table[..., 1]), trust.NOTHING)
    assert table[..., encounters.OPINION] == pytest.approx(own)
    # What was told decides all the same: weights are not what the client has seen alone.
    sigma = table[..., encounters.SIGMA]
    assert (np.abs(sigma - own[..., 0])[sigma > 0] > 1e-3).any()


def test_clients_with_the_same_model_are_as_similar_as_can_be():
    # Nobody trains, so all models are the initial one, and everybody sees the same classes in everything.
    _, end = ends(federation(), rounds=3, epochs=0.0)
    evidence = end.table[..., encounters.EVIDENCE] - 1
    assert evidence[..., 0].max() >= 2
    assert evidence[..., 1].abs().max() < 1e-12


def two_kinds(clients=10):
    """Clients of two kinds: classes a and b, or classes c and d, around four corners."""
    rng = np.random.default_rng(1)
    y = np.repeat(np.arange(4), 150)
    x = (3 * np.eye(4)[y] + rng.normal(size=(600, 4)) / 3).astype(np.float32)
    samples = coterie.Dataset(x, y, labels=tuple("abcd"))
    kinds = [rng.permutation(np.flatnonzero(y // 2 == kind)).reshape(clients // 2, -1) for kind in range(2)]
    return coterie.simulate(samples, Split(tuple(np.concatenate(kinds))), "mlp", precision="float64")


def test_clients_with_the_same_classes_turn_out_similar():
    _, end = ends(two_kinds(), rounds=8, gan_steps=60)
    kind = torch.arange(10) >= 5
    same = (kind[:, None] == kind) & ~torch.eye(10, dtype=torch.bool)
    gained = end.table[..., encounters.EVIDENCE] - 1
    met = gained.sum(dim=2) > 0
    similarity = gained[..., 0] / gained.sum(dim=2)
    assert similarity[met & same].mean() > similarity[met & ~same].mean() + 0.4


# Reductions


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("rehearse", [False, True])
def test_without_two_contributors_everybody_stays_alone(clients, rehearse):
    fed = federation(clients=clients)
    result, end = ends(fed, rounds=3, rehearse=rehearse)
    local = coterie.Local(rounds=3, batch=8).fit(fed)
    alone = fed._engine._memory.values["model"][:clients]
    assert torch.equal(end.model.parameters, alone.parameters)
    assert [client["accuracy"] for client in result.clients] == [client["accuracy"] for client in local.clients]
    assert [client["steps"] for client in result.clients] == [client["steps"] for client in local.clients]


@pytest.fixture
def full_trust(monkeypatch):
    """Everybody is sure that everybody is the same."""

    def heard(own, me, told):
        opinions = np.tile([1.0, 0.0, 0.0], (len(own), 1))
        opinions[me] = trust.NOTHING
        return opinions

    monkeypatch.setattr(trust, "heard", heard)


@pytest.mark.parametrize("rehearse", [False, True])
def test_with_every_weight_1_it_is_uniform_averaging(full_trust, rehearse):
    fed = federation()
    _, end = ends(fed, rounds=3, rehearse=rehearse)
    fedavg = coterie.FedAvg(rounds=3, weighting="uniform", batch=8).fit(fed)
    difference = (numbers(end.model) - numbers(fedavg.state.model.expand(8))).abs().max()
    assert difference <= (100 * sharing.STEP if rehearse else 1e-12)


def test_with_a_trusted_server_the_models_are_the_same_but_it_gets_to_see_them():
    _, peer = ends(federation(), rounds=3)
    result, server = ends(federation(), rounds=3, topology="server")
    assert torch.equal(peer.model.parameters, server.model.parameters)
    ledger = result.summary["ledger"]
    size = 3 * 8 * server.model.net.parameters.total * 8
    assert ledger["up"]["model"] == ledger["down"]["model"] == size
    assert ledger["up"]["similarity"] == 3 * 8 * 8 * 8
    assert not {"share", "sum", "request"} & set(ledger["peer"])


def test_clipping_bounds_what_contributors_do():
    _, end = ends(federation(), rounds=1, topology="server", server_clip=0.01)
    trained, sigma = numbers(end.last), end.table[..., encounters.SIGMA]
    weights = personal(sigma)
    moved = (numbers(end.model) - trained).norm(dim=1)
    assert (moved <= 0.01 * (1 - weights.diagonal()) + 1e-12).all()
    assert moved.max() > 0
    # A bound that nobody reaches changes nothing.
    _, loose = ends(federation(), rounds=1, topology="server", server_clip=1e6)
    _, plain = ends(federation(), rounds=1, topology="server")
    assert torch.allclose(numbers(loose.model), numbers(plain.model), atol=1e-12)


def test_noise_is_as_large_as_the_largest_contribution_and_repeatable():
    runs = [
        ends(federation(net="mlp"), rounds=1, topology="server", server_clip=2.0, server_noise=s)[1] for s in (0, 3, 3)
    ]
    quiet, noisy, again = (numbers(end.model) for end in runs)
    assert torch.equal(noisy, again)
    weights = personal(runs[0].table[..., encounters.SIGMA])
    largest = (weights - torch.diag(weights.diagonal())).amax(dim=1)
    deviation = (noisy - quiet).std(dim=1)
    mixed = largest > 0
    assert deviation[~mixed].tolist() == [0] * int((~mixed).sum())
    assert (deviation / (3 * 2.0 * largest))[mixed].tolist() == pytest.approx([1] * int(mixed.sum()), rel=0.15)


# Rounds


def test_samples_are_made_anew_every_few_rounds_and_then_seldom():
    rounds = [last_refresh(number, 3) for number in range(1, 60)]
    assert sorted(set(rounds)) == [1, 4, 7, 10, 16, 28, 52]
    assert rounds[:7] == [1, 1, 1, 4, 4, 4, 7]
    assert {last_refresh(number, 0) for number in range(1, 60)} == {1}


def test_the_same_samples_are_shown_until_then():
    fed = sealed(federation())
    coterie.SLFed(rounds=5, **QUICK).fit(fed)
    shown = {}
    for call, answers in zip(fed._engine.calls, fed._engine.answers, strict=True):
        if call.program is slfed.introduce:
            shown[call.at.number] = fed._engine.letters[: len(answers.letters)]
            del fed._engine.letters[: len(answers.letters)]
        else:
            del fed._engine.letters[: len(answers.letters)]
    of_one = {
        number: next(letter.content["samples"] for letter in letters if letter.sender == "0")
        for number, letters in shown.items()
    }
    assert torch.equal(of_one[1], of_one[3])
    assert not torch.equal(of_one[3], of_one[4])
    assert torch.equal(of_one[4], of_one[5])


def test_meetings_are_drawn_anew_every_round_and_by_name():
    fed = federation()
    drawn = []
    for fed.round in (1, 2, 1):
        drawn.append(coterie.SLFed()._links(fed, np.arange(8)))
    assert (drawn[0] == drawn[2]).all()
    assert (drawn[0] != drawn[1]).any()
    some = coterie.SLFed()._links(fed, np.array([1, 4, 6]))
    assert some.shape == (3, 8)
    assert not some[:, [0, 2, 3, 5, 7]].any()


def test_permuting_clients_permutes_the_result():
    base, order = data(), [3, 0, 6, 4, 1, 5, 2, 7]
    parts = np.array_split(np.arange(len(base)), 8)
    ends_of = []
    for arrangement in (range(8), order):
        split = Split(tuple(parts[client] for client in arrangement), names=tuple(f"c{c}" for c in arrangement))
        fed = coterie.simulate(base, split, "logistic", precision="float64", split_seed=0)
        ends_of.append(ends(fed, rounds=4)[1])
    plain, permuted = (numbers(end.model) for end in ends_of)
    assert (plain[order] - permuted).abs().max() < 1e-9


# Faults and small federations


@pytest.mark.parametrize("where", ["share", "respond"])
def test_a_contributor_lost_during_the_exchange_costs_the_sums_it_is_in_and_nothing_else(where):
    _, whole = ends(federation(), rounds=1, rehearse=True)
    sigma = whole.table[..., encounters.SIGMA]
    lost = int((sigma > 0).sum(dim=0).argmax())
    _, broken = ends(sealed(federation(), lost={str(lost): where}), rounds=1)
    hit = sigma[:, lost] > 0
    assert hit.any()
    hit[lost] = True  # who is not there cannot combine either
    assert ((sigma > 0).any(dim=1) & ~hit).any()  # others do
    for row in range(8):
        expected = whole.last if hit[row] else whole.model
        assert torch.equal(broken.model.parameters[row], expected.parameters[row])


def test_a_client_lost_before_is_not_met_and_not_chosen():
    _, end = ends(sealed(federation(), lost={"2": "judge"}), rounds=1)
    assert (end.table[:, 2, encounters.EVIDENCE] == 1).all()
    assert (end.table[:, 2, encounters.SIGMA] == 0).all()
    assert torch.equal(end.model.parameters[2], end.last.parameters[2])


@pytest.mark.parametrize("subject", ["samples", "counts", "opinions"])
def test_a_letter_lost_on_the_way_costs_that_encounter_and_nothing_else(subject):
    whole = sealed(federation())
    _, end = ends(whole, rounds=1)
    one = next(at for at in whole._engine.letters if at.subject == subject)
    sender, receiver = whole.names.index(one.sender), whole.names.index(one.receiver)
    _, missed = ends(sealed(federation(), never=[(one.sender, one.receiver, subject)]), rounds=1)
    changed = (missed.table[..., encounters.EVIDENCE] != end.table[..., encounters.EVIDENCE]).any(dim=2)
    # Without samples there are no counts to send back, and without either way there is no similarity.
    expected = {"samples": {(receiver, sender), (sender, receiver)}, "counts": {(receiver, sender)}, "opinions": set()}
    assert {tuple(place) for place in changed.nonzero().tolist()} == expected[subject]


def test_a_client_whose_training_fails_is_left_out_and_keeps_what_it_had():
    base = data()
    base.x[:30] *= 1e25  # the first client's samples: its model overflows
    parts = np.array_split(np.arange(len(base)), 8)
    fed = coterie.simulate(base, Split(tuple(parts)), "mlp", precision="float32", scaling="none")
    coterie.SLFed(rounds=2, **QUICK).fit(fed)
    memory = fed._engine._memory
    assert not memory.known["model"][0]
    assert memory.known["model"][1:8].all()
    assert torch.isfinite(memory.values["model"].parameters[1:8]).all()
    table = torch.cat([memory.values[name] for name in memory if name.startswith("others")], dim=1)
    assert (table[1:8, 0, encounters.EVIDENCE] == 1).all()


@pytest.mark.parametrize("options", [{"participation": 0.5}, {"participation": 0.01}, {"arrivals": {6: 3, 7: 99}}])
def test_not_everybody_has_to_be_there(options):
    participation = options.pop("participation", 1.0)
    fed = federation(**options)
    result, end = ends(fed, rounds=4, participation=participation, rehearse=True)
    if participation < 1:
        assert sum(client["rounds_taken_part"] for client in result.clients) == 4 * max(1, int(8 * participation))
    if options:
        assert len(result.clients) == 7
        assert (end.table[:, 7, encounters.EVIDENCE] == 1).all()
        assert (end.table[:6, 6, encounters.EVIDENCE] > 1).any()


def test_clients_with_one_sample_or_one_class_take_part():
    base = data()
    order = np.argsort(base.y, kind="stable")
    parts = [order[:1], order[1:2], order[2:40], *np.array_split(order[40:], 5)]
    fed = given(parts, validation=0, test_share=0)
    result, end = ends(fed, rounds=3)
    assert fed.sizes[:2].tolist() == [1, 1]
    assert torch.isfinite(numbers(end.model)).all()
    assert all(client["rounds_taken_part"] == 3 for client in result.clients)


@pytest.mark.parametrize("clients", [3, 4, 6])
def test_small_federations_run(clients):
    _, direct = ends(federation(clients=clients), rounds=4)
    _, rehearsed = ends(federation(clients=clients), rounds=4, rehearse=True)
    assert (numbers(direct.model) - numbers(rehearsed.model)).abs().max() <= 100 * sharing.STEP


def test_what_a_client_notes_has_room_for_others_who_join_later():
    few = tuple(f"c{number}" for number in range(3))
    many = tuple(f"c{number}" for number in range(70))
    clients = world(mlp).clients()
    table = encounters.recall(clients, few)
    assert (table[:, :, encounters.OPINION] == trust.NOTHING).all()
    table[:, 1, 0] = 7.5
    encounters.remember(clients, table)
    memory = clients._memory
    memory.update(torch.arange(4), clients.kept)
    later = world(mlp).clients(memory=memory)
    grown = encounters.recall(later, many)
    assert grown.shape == (4, 70, len(encounters.STRANGER))
    assert (grown[:, 1, 0] == 7.5).all()
    assert (grown[:, 3:, encounters.OPINION] == trust.NOTHING).all()
    grown[:, 69, 0] = 3.5
    encounters.remember(later, grown)
    memory.update(torch.arange(4), later.kept)
    assert (encounters.recall(world(mlp).clients(memory=memory), many)[:, 69, 0] == 3.5).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direct": 0}, "direct=0"),
        ({"synthetic": 0}, "synthetic=0"),
        ({"gan_steps": 0}, "gan_steps=0"),
        ({"gan_refresh": -1}, "gan_refresh=-1"),
        ({"gan_rate": 0.0}, "gan_rate=0.0"),
        ({"server_clip": 1.0}, "use topology=server"),
        ({"topology": "server", "server_noise": 1.0}, "in units of server_clip"),
        ({"topology": "server", "server_clip": -1.0}, "server_clip=-1.0"),
        ({"sharing": "shamir"}, "sharing"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        coterie.methods.make("slfed", **options)

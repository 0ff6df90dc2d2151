"""Figures of samples that SLFed's clients made."""

import json

import numpy as np
import pytest

import coterie.papers  # noqa: F401  registers its kinds of figures
from coterie.core.errors import SettingsError
from coterie.report.figures import NotRecordedError, kinds, svg
from coterie.runs.folder import StoredRun


@pytest.fixture
def stored(tmp_path):
    """A run folder of a measure with these images."""

    def write(name, images):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "settings.toml").write_text('[measure]\nname = "synthetic-samples"\n')
        content = {"clients": [f"client-{number}" for number in range(len(images))], "images": images.tolist()}
        (folder / "details.json").write_text(json.dumps(content if images.size else {}))
        return StoredRun.read(folder)

    return write


def pictures(*shape):
    return (np.arange(np.prod(shape)) % 256).reshape(shape)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_laid_out_by_client(stored, channels):
    images = pictures(4, 2, channels, 5, 6)
    figure = kinds.make("images", clients=3).draw({"few": [stored("few", images)]}, "Made by GANs")
    (axes,) = figure.axes
    shown = axes.get_images()[0].get_array()
    assert shown.shape[:2] == (3 * 6 - 1, 2 * 7 - 1)
    first = shown[:5, :6].reshape(5, 6, -1)
    np.testing.assert_array_equal(np.moveaxis(np.asarray(first), -1, 0), images[0, 0])
    np.testing.assert_array_equal(np.asarray(shown[6:11, 7:13]).reshape(5, 6, -1)[..., 0], images[1, 1, 0])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["client-0", "client-1", "client-2"]
    assert axes.get_title(loc="left") == "Made by GANs"
    assert "<svg" in svg(figure)


def test_every_run_with_images_has_a_panel(stored):
    runs = {name: [stored(name, pictures(2, 2, 1, 4, 4))] for name in ("200 steps", "2,000 steps")}
    figure = kinds.make("images").draw({**runs, "none": [stored("none", np.empty(0))]}, "Made by GANs")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["200 steps", "2,000 steps"]


def test_runs_without_images_have_nothing_to_show(stored):
    with pytest.raises(NotRecordedError, match="the measure synthetic-samples does"):
        kinds.make("images").draw({"none": [stored("none", np.empty(0))]})


@pytest.mark.parametrize(("option", "message"), [({"clients": 0}, "clients=0: at least 1"), ({"seed": -1}, "seed=-1")])
def test_impossible_choices_are_refused(option, message):
    with pytest.raises(SettingsError, match=message):
        kinds.make("images", **option)

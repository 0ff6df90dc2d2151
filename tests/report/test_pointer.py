"""What a pointer finds in a figure: values where they are drawn, and parts by the names in the legend."""

import numpy as np
import pytest

from coterie.report.figures import pointer, style, svg


def found_in(figure):
    found = pointer.identify(figure, "f-")
    text = svg(figure)
    pointer.locate(figure, found)
    return found, text


def test_values_are_found_where_they_are_drawn():
    figure, (axes,) = style.figure(6, 4)
    axes.plot([1, 2, 3], [10.0, 30.0, 20.0], label="a")
    axes.set(xlabel="round", ylabel="mean accuracy, %")
    found, _ = found_in(figure)
    assert [said for *_, said in found.points] == [
        "round 1: mean accuracy 10 %",
        "round 2: mean accuracy 30 %",
        "round 3: mean accuracy 20 %",
    ]
    across, down, names = (np.array(column) for column in list(zip(*found.points, strict=True))[:3])
    assert (np.diff(across) > 0).all()
    assert np.argmin(down) == 1, "the highest value is nearest to the top"
    assert ((across > 0) & (across < 1) & (down > 0) & (down < 1)).all()
    assert set(names) == {0}


def test_a_place_is_a_share_of_the_picture():
    figure, (axes,) = style.figure(6, 4)
    figure.set_layout_engine(None)
    axes.set_position([0.25, 0.5, 0.5, 0.25])  # from the left, from below, width, height
    axes.plot([0, 1], [0, 1], label="a")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    found, _ = found_in(figure)
    assert [point[:2] for point in found.points] == [(0.25, 0.5), (0.75, 0.25)]


def test_parts_are_told_apart_by_name_and_unlabelled_ones_by_their_colour():
    figure, (axes,) = style.figure(6, 4)
    for number, name in enumerate(("a", "b")):
        looks = style.look(number)
        axes.plot([0, 1], [0, 1], label=name, **looks)
        axes.vlines([0], 0, 1, color=looks["color"], alpha=0.4)
    axes.axhline(0, color="#123456")
    axes.legend()
    found, text = found_in(figure)
    assert found.names == ["a", "b"]
    assert sorted(found.parts.values()) == [0, 0, 1, 1]
    assert sorted(found.keys.values()) == [0, 1]
    assert all(f'id="{name}"' in text for name in (*found.parts, *found.keys))


def test_of_two_names_with_one_colour_only_their_own_parts_are_known():
    figure, (axes,) = style.figure(6, 4)
    for name in ("a", "b"):
        axes.plot([0, 1], [0, 1], label=name, color="#0072B2")
    axes.vlines([0], 0, 1, color="#0072B2")
    axes.legend()
    found, _ = found_in(figure)
    assert sorted(found.parts.values()) == [0, 1]


def test_clients_are_called_by_their_names():
    figure, (axes,) = style.figure(6, 4)
    axes.plot([0.1, 0.9], [-2.0, 3.0], "o", label="fedavg")
    style.name_clients(axes, ["north", "south"], most=1)  # the axis has room for one name alone
    axes.set(xlabel="client", ylabel="points")
    axes.legend()
    found, _ = found_in(figure)
    assert [said for *_, said in found.points] == ["client north: −2 points", "client south: 3 points"]


def test_cells_of_a_matrix_are_found():
    figure, (axes,) = style.figure(6, 4)
    axes.imshow(np.array([[0.0, 0.25], [0.5, 1.0]]))
    style.name_clients(axes, ["north", "south"], most=2, both=True)
    found, _ = found_in(figure)
    assert [said for *_, said in found.points] == [
        "north, north: 0",
        "north, south: 0.25",
        "south, north: 0.5",
        "south, south: 1",
    ]


def test_what_is_not_a_number_is_not_found():
    figure, (axes,) = style.figure(6, 4)
    axes.plot([0, 1, 2], [0, np.nan, 1], label="a")
    found, _ = found_in(figure)
    assert len(found.points) == 2


@pytest.mark.parametrize(("count", "kept"), [(3000, 3000), (5000, 0)])
def test_a_page_does_not_grow_without_bounds(count, kept):
    figure, (axes,) = style.figure(6, 4)
    axes.plot(np.arange(count), np.arange(count), label="a")
    found, _ = found_in(figure)
    assert len(found.points) == kept

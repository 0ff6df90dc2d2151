"""Finding, fetching, unpacking and verifying files, without a network."""

import hashlib
import io
import json
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.core.errors import DataError
from coterie.data import storage
from coterie.data.storage import Collection, Download, PublishedFile, data_folder, unpack, verified

CONTENTS = {"one.bin": b"the first file", "two.bin": b"the second file"}


def published(name, content):
    return PublishedFile(name, len(content), f"md5:{hashlib.md5(content).hexdigest()}")


FILES = tuple(published(name, content) for name, content in CONTENTS.items())


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A user cache of the test's own, so that nothing is left behind in the real one."""
    folder = tmp_path / "user-cache"
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(folder / name))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    return folder / "coterie"


class Network:
    """What addresses give, bytes or an error; and everything that was asked for."""

    def __init__(self):
        self.answers: dict[str, bytes | Exception] = {}
        self.asked: list[str] = []

    def retrieve(self, url, path):
        self.asked.append(url)
        answer = self.answers.get(url, ConnectionError("no network"))
        path.write_bytes(answer if isinstance(answer, bytes) else b"a par")
        if isinstance(answer, Exception):
            raise answer


@pytest.fixture
def network(monkeypatch):
    network = Network()
    monkeypatch.setattr(storage, "_retrieve", network.retrieve)
    return network


def tar(contents, prefix="inner/"):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as box:
        for name, content in contents.items():
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(content)
            box.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def zipped(contents, prefix="inner/"):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as box:
        if prefix:
            box.writestr(prefix, b"")
        for name, content in contents.items():
            box.writestr(prefix + name, content)
    return target.getvalue()


def single():
    downloads = tuple(
        Download(file, (f"http://a/{file.name}", f"http://b/{file.name}"), "Things/raw") for file in FILES
    )
    return Collection("things", FILES, ("Things/raw",), downloads, "http://a")


def archived(content):
    archive = published("things.tar.gz", content)
    download = Download(archive, ("http://a/things.tar.gz",), "Things/raw", FILES)
    return Collection("things", FILES, ("Things/raw",), (download,), "http://a")


def fill(folder, contents=CONTENTS):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_data_folder_is_the_given_one_or_the_variable_or_the_cache(tmp_path, monkeypatch, cache):
    assert data_folder() == cache
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "variable"))
    assert data_folder() == tmp_path / "variable"
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    assert data_folder("~/here") == Path("~/here").expanduser()


def test_a_file_is_no_data_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="not a folder"):
        data_folder(tmp_path / "file")


@pytest.mark.parametrize("place", ["Things/raw", "things/Things/raw", "things/raw", "things", "raw", ""])
def test_common_layouts_are_found(tmp_path, place):
    fill(tmp_path / place)
    assert single().obtain(tmp_path, download=False) == [tmp_path / place / name for name in CONTENTS]


def test_files_may_be_in_different_places(tmp_path):
    fill(tmp_path / "things", {"one.bin": CONTENTS["one.bin"]})
    fill(tmp_path, {"two.bin": CONTENTS["two.bin"]})
    assert single().obtain(tmp_path, download=False) == [tmp_path / "things/one.bin", tmp_path / "two.bin"]


def test_the_unpacked_form_serves_as_well(tmp_path):
    packed = replace(published("one.gz", b"packed"), unpacked=published("one", b"plain"))
    collection = Collection("things", (packed,), ())
    fill(tmp_path, {"one.gz": b"packed"})
    assert collection.obtain(tmp_path, download=False) == [tmp_path / "one.gz"]
    fill(tmp_path, {"one": b"plain"})
    assert collection.obtain(tmp_path, download=False) == [tmp_path / "one"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the first fil", r"one.bin: expected 14 bytes, found 13"),
        (b"the first file and more", r"one.bin: expected 14 bytes, found 23"),
        (b"the worst file", r"one.bin: expected the md5 sum"),
    ],
)
def test_a_wrong_file_is_named_and_left_alone(tmp_path, network, content, message):
    fill(tmp_path, {"one.bin": content})
    with pytest.raises(DataError, match=message):
        single().obtain(tmp_path, download=True)
    assert (tmp_path / "one.bin").read_bytes() == content
    assert network.asked == []


def test_a_file_without_a_known_checksum_is_judged_by_its_size(tmp_path):
    fill(tmp_path)
    assert verified(tmp_path / "one.bin", PublishedFile("one.bin", 14)) == tmp_path / "one.bin"
    assert verified(tmp_path / "one.bin", PublishedFile("one.bin")) == tmp_path / "one.bin"
    with pytest.raises(DataError, match="expected 15 bytes"):
        verified(tmp_path / "one.bin", PublishedFile("one.bin", 15))


@pytest.fixture
def hashed(monkeypatch):
    """The files whose content was compared."""
    names = []
    compare = storage._difference
    monkeypatch.setattr(storage, "_difference", lambda path, file: names.append(path.name) or compare(path, file))
    return names


def test_a_file_is_hashed_once_until_it_changes(tmp_path, hashed, cache):
    fill(tmp_path)
    for _ in range(3):
        single().obtain(tmp_path, download=False)
    assert hashed == ["one.bin", "two.bin"]
    assert len(json.loads((cache / "verified.json").read_text())) == 2
    fill(tmp_path, {"one.bin": b"the worst file"})
    os.utime(tmp_path / "one.bin", ns=(1, 1))
    with pytest.raises(DataError, match="md5"):
        single().obtain(tmp_path, download=False)


def test_another_expectation_is_not_met_by_an_old_verification(tmp_path):
    fill(tmp_path)
    verified(tmp_path / "one.bin", FILES[0])
    with pytest.raises(DataError, match="sha1"):
        verified(tmp_path / "one.bin", PublishedFile("one.bin", 14, "sha1:" + "0" * 40))


@pytest.mark.parametrize("content", ["not json", "[]", ""])
def test_a_broken_memory_only_costs_time(tmp_path, hashed, cache, content):
    fill(tmp_path)
    fill(cache, {"verified.json": content.encode()})
    single().obtain(tmp_path, download=False)
    single().obtain(tmp_path, download=False)
    assert hashed == ["one.bin", "two.bin"]


def test_a_memory_that_cannot_be_written_only_costs_time(tmp_path, hashed, cache):
    fill(tmp_path)
    cache.parent.mkdir(parents=True)
    cache.touch()  # a file where the folder should be
    single().obtain(tmp_path, download=False)
    single().obtain(tmp_path, download=False)
    assert hashed == ["one.bin", "two.bin"] * 2


def test_missing_files_are_downloaded(tmp_path, network):
    network.answers |= {f"http://a/{name}": content for name, content in CONTENTS.items()}
    paths = single().obtain(tmp_path / "new", download=True)
    assert [path.read_bytes() for path in paths] == list(CONTENTS.values())
    assert everything_below(tmp_path / "new") == ["Things", "Things/raw", "Things/raw/one.bin", "Things/raw/two.bin"]
    assert single().obtain(tmp_path / "new", download=False) == paths


def test_only_what_is_missing_is_downloaded(tmp_path, network):
    network.answers["http://a/two.bin"] = CONTENTS["two.bin"]
    fill(tmp_path, {"one.bin": CONTENTS["one.bin"]})
    single().obtain(tmp_path, download=True)
    assert network.asked == ["http://a/two.bin"]


def test_a_mirror_helps_out(tmp_path, network):
    network.answers |= {"http://a/one.bin": ConnectionError("gone"), "http://a/two.bin": b"a page that says: forbidden"}
    network.answers |= {f"http://b/{name}": content for name, content in CONTENTS.items()}
    paths = single().obtain(tmp_path, download=True)
    assert [path.read_bytes() for path in paths] == list(CONTENTS.values())


def test_without_a_network_one_error_says_it_all(tmp_path, network):
    with pytest.raises(DataError) as caught:
        single().obtain(tmp_path, download=True)
    message = str(caught.value)
    for part in ("things", "one.bin, two.bin", str(tmp_path), "Things/raw", "http://a", "no network"):
        assert part in message
    assert everything_below(tmp_path / "Things/raw") == []


def test_what_was_got_before_a_failure_is_kept_and_not_named(tmp_path, network):
    network.answers["http://a/one.bin"] = CONTENTS["one.bin"]
    with pytest.raises(DataError, match=r"things: no two.bin in"):
        single().obtain(tmp_path, download=True)
    assert everything_below(tmp_path / "Things/raw") == ["one.bin"]


def test_a_download_with_a_wrong_checksum_leaves_nothing_behind(tmp_path, network):
    network.answers |= {f"http://{host}/one.bin": b"the worst file" for host in "ab"}
    with pytest.raises(DataError, match=r"http://a/one.bin: expected the md5 sum .*; http://b/one.bin: expected"):
        single().obtain(tmp_path, download=True)
    assert everything_below(tmp_path / "Things/raw") == []


def test_an_answer_of_the_server_is_told(tmp_path, network):
    refusal = OSError("403 Client Error: Forbidden for url: http://a/one.bin")
    refusal.response = type("Response", (), {"status_code": 403})
    network.answers["http://a/one.bin"] = refusal
    with pytest.raises(DataError, match="the server answered 403"):
        single().obtain(tmp_path, download=True)


def test_long_messages_of_the_network_are_cut(tmp_path, network):
    network.answers["http://a/one.bin"] = ConnectionError("Max retries exceeded " * 20)
    with pytest.raises(DataError, match=r"http://a/one.bin: ConnectionError;"):
        single().obtain(tmp_path, download=True)


def test_downloading_can_be_switched_off(tmp_path, network):
    with pytest.raises(DataError, match=r"one.bin, two.bin.*switched off"):
        single().obtain(tmp_path, download=False)
    assert network.asked == []
    assert everything_below(tmp_path) == []


def test_files_that_nobody_offers_are_named(tmp_path):
    with pytest.raises(DataError, match=r"no one.bin, two.bin in .*no download is known"):
        Collection("things", FILES, ()).obtain(tmp_path, download=True)


def test_a_data_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path, network):
    (tmp_path / "Things").touch()
    with pytest.raises(DataError, match=r"getting them failed \((FileExistsError|NotADirectoryError)"):
        single().obtain(tmp_path, download=True)


@pytest.mark.parametrize("make", [tar, zipped])
@pytest.mark.parametrize("prefix", ["", "inner/", "../../", "/"])
def test_archives_are_unpacked_and_removed(tmp_path, network, make, prefix):
    content = make(CONTENTS | {"README": b"not wanted"}, prefix)
    network.answers["http://a/things.tar.gz"] = content
    paths = archived(content).obtain(tmp_path / "new/data", download=True)
    assert [path.read_bytes() for path in paths] == list(CONTENTS.values())
    assert everything_below(tmp_path / "new") == [
        "data",
        "data/Things",
        "data/Things/raw",
        "data/Things/raw/one.bin",
        "data/Things/raw/two.bin",
    ]


def test_an_archive_that_is_there_needs_no_network(tmp_path, network):
    content = tar(CONTENTS)
    fill(tmp_path, {"things.tar.gz": content})
    paths = archived(content).obtain(tmp_path, download=False)
    assert [path.read_bytes() for path in paths] == list(CONTENTS.values())
    assert (tmp_path / "things.tar.gz").exists()
    assert network.asked == []


def test_only_missing_members_are_unpacked(tmp_path):
    content = tar(CONTENTS)
    fill(tmp_path, {"things.tar.gz": content, "one.bin": CONTENTS["one.bin"]})
    archived(content).obtain(tmp_path, download=False)
    assert everything_below(tmp_path / "Things/raw") == ["two.bin"]


def test_a_damaged_archive_that_is_there_is_named(tmp_path):
    content = tar(CONTENTS)
    fill(tmp_path, {"things.tar.gz": content[:-1]})
    with pytest.raises(DataError, match=r"things.tar.gz: expected"):
        archived(content).obtain(tmp_path, download=False)


@pytest.mark.parametrize("make", [tar, zipped])
def test_an_archive_without_a_member_is_refused_as_a_whole(tmp_path, network, make):
    content = make({"one.bin": CONTENTS["one.bin"]})
    network.answers["http://a/things.tar.gz"] = content
    with pytest.raises(DataError, match=r"has no two.bin"):
        archived(content).obtain(tmp_path, download=True)
    assert everything_below(tmp_path / "Things/raw") == []


def test_a_member_with_other_content_is_refused(tmp_path):
    (tmp_path / "box").write_bytes(tar(CONTENTS | {"two.bin": b"the wicked file"}))
    with pytest.raises(DataError, match=r"box: two.bin in it: expected the md5 sum"):
        unpack(tmp_path / "box", FILES, tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive at all", tar(CONTENTS)[:60], zipped(CONTENTS)[:-30]],
    ids=["empty", "text", "cut tar", "cut zip"],  # an archive has the time in it, and would name the test by it
)
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "box").write_bytes(content)
    with pytest.raises(DataError, match=r"box: cannot be unpacked"):
        unpack(tmp_path / "box", FILES, tmp_path)


def test_links_in_an_archive_are_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(CONTENTS["one.bin"])
    with tarfile.open(tmp_path / "box", "w") as box:
        entry = tarfile.TarInfo("one.bin")
        entry.type, entry.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        box.addfile(entry)
    with pytest.raises(DataError, match=r"has no one.bin"):
        unpack(tmp_path / "box", FILES[:1], tmp_path)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_progress_bar_is_for_terminals_only(tmp_path, monkeypatch, terminal):
    made = {}

    class Downloader:
        def __init__(self, **settings):
            made.update(settings)

        def __call__(self, url, path, pooch):
            Path(path).write_bytes(url.encode())

    monkeypatch.setattr("pooch.HTTPDownloader", Downloader)
    monkeypatch.setattr("sys.stderr", type("Stream", (io.StringIO,), {"isatty": lambda self: terminal})())
    storage._retrieve("http://a/one.bin", tmp_path / "one.bin")
    assert (tmp_path / "one.bin").read_bytes() == b"http://a/one.bin"
    assert made["progressbar"] is terminal
    assert made["headers"]["Accept-Encoding"] == "identity"

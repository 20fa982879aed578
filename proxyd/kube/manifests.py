"""The embedded source: a folder of YAML or JSON files instead of an API server; the same decoders feed the same store.

What another object or file does wrong never harms the rest, and a file that cannot be read keeps what it gave before.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog

from proxyd.errors import UserError
from proxyd.kube.decode import Decoded, ObjectKey, decode_endpoint_slice, decode_node, decode_service
from proxyd.kube.store import Intake, Store
from proxyd.model import Finding, Reason

SUFFIXES = (".yaml", ".yml", ".json")

# watchfiles sleeps for STEP between two looks at what the kernel reported, and a change is out after two of them: measured
# 4 ms and 1.5 % of a core at 2 ms (9 ms, 1 % at 5 ms; 31 ms, 0.3 % at 20 ms).
STEP_MS = 2
DEBOUNCE_MS = 20
# The folder is looked at this often without any report too: not every file system sends them.
RESCAN_MS = 5_000

# A file may be seen while it is saved, cut or missing: what takes objects away must still be so after this time (seconds).
SETTLE_SECONDS = 0.1

log = structlog.get_logger()

Claim = tuple[str, ObjectKey]  # kind and key of an object
Stamp = tuple[int, int, int]  # what tells that a file was written or replaced


class ManifestError(UserError):
    """The folder cannot be used; the text is one line for the user."""


class _File(NamedTuple):
    """What is known of one file: its stamp, what it gave, and what is wrong with it ("" if nothing)."""

    stamp: Stamp
    objects: dict[Claim, Decoded[Any]]
    wrong: str


class _Reading:
    """What a file gives while it is read. ``nameless`` counts objects so wrong that not even their name is known."""

    def __init__(self) -> None:
        self.objects: dict[Claim, Decoded[Any]] = {}
        self.problems: list[str] = []
        self.ignored: set[str] = set()
        self.nameless = 0


_DECODERS: dict[tuple[str, str], Callable[[bytes], Decoded[Any]]] = {
    ("v1", "Service"): decode_service,
    ("discovery.k8s.io/v1", "EndpointSlice"): decode_endpoint_slice,
    ("v1", "Node"): decode_node,
}


class _StoppedError(Exception):
    """The process is to end; what has been read so far is of no use."""


class ManifestSource:
    """Keeps the store equal to the files ``*.yaml``, ``*.yml`` and ``*.json`` of one folder (not of folders below it).

    Of an object that is in two files, the one in the first file by name counts.
    """

    def __init__(
        self,
        folder: str,
        store: Store,
        node_name: str,
        stopping: Callable[[], bool] = lambda: False,
        *,
        only: str = "",
    ) -> None:
        """``node_name`` is the one whose Node object counts; ``stopping`` tells that no more need be read.

        ``only``: one file of the folder, whatever its suffix, in place of all.
        """
        self._only = only
        self._folder = Path(folder)
        self._store = store
        self._node_name = node_name
        self._intakes: dict[str, Intake[Any]] = {
            "Service": store.services,
            "EndpointSlice": store.slices,
            "Node": store.nodes,
        }
        self._files: dict[str, _File] = {}
        self._claims: dict[Claim, dict[str, Decoded[Any]]] = {}
        # Files that give less than before, each as it was seen (None: missing).
        self._unsettled: dict[str, Stamp | None] = {}
        self._stopping = stopping
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="manifests", daemon=True)

    def start(self) -> None:
        """Reads all files into the store (as ``read``), and follows changes from a thread. To be called once."""
        if self.read():
            log.info("manifests read", folder=str(self._folder), files=len(self._files), objects=len(self._claims))
            self._thread.start()

    def read(self) -> bool:
        """Reads all files into the store and marks it complete.

        Raises ManifestError where the folder is missing, is none, or may not be read. Large files take a while; where
        the process is to end meanwhile, nothing is marked complete, and False is given.
        """
        try:
            found = self._scan()
        except OSError as error:
            raise ManifestError(f"manifest folder {self._folder}: {error.strerror or error}") from error
        try:
            for name in found:
                self._read(name, found[name], settled=True)
        except _StoppedError:
            return False
        for kind, intake in self._intakes.items():
            intake.replace([self._winner(claim) for claim in self._claims if claim[0] == kind])
        self._report()
        return True

    def stop(self, timeout: float = 0.5) -> bool:
        """Ends the thread, waiting ``timeout`` seconds at most; tells whether it ended. The store stays as it is."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- following -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except _StoppedError:
                return
            except OSError as error:
                # The folder went away, perhaps to be mounted anew: keep serving what it gave.
                self._note("", f"folder: {error.strerror or error}")
                self._stop.wait(1.0)
            except Exception as error:  # a fault of our own must not end the watch
                log.exception("fault in the manifest source")
                self._note("", f"{type(error).__name__}: {error}")
                self._stop.wait(1.0)

    def _follow(self) -> None:
        """Follows the folder until it is another one or the source is stopped. Raises OSError if it is gone."""
        # Not watchfiles.watch(): that begins to watch only when it is first waited for, and what changed before is lost.
        from watchfiles._rust_notify import RustNotify  # noqa: PLC0415 - needed for this source only

        watched = os.stat(self._folder).st_ino
        with RustNotify([str(self._folder)], False, False, 300, False, False) as notify:
            # Every report is only a hint to look: a mounted ConfigMap changes its files by turning a hidden link.
            report: object = None
            while report not in ("stop", "signal"):
                self._note("", "")
                self._refresh()
                if os.stat(self._folder).st_ino != watched:
                    return
                report = notify.watch(DEBOUNCE_MS, STEP_MS, RESCAN_MS, self._stop)

    def _refresh(self) -> None:
        """Takes up what changed; again, while a file looks as if it were being written."""
        self._look(settled=False)
        while self._unsettled and not self._stop.wait(SETTLE_SECONDS):
            self._look(settled=True)

    def _look(self, *, settled: bool) -> None:
        """Takes up what changed; with ``settled`` also what was unsettled before and is still the same."""
        found = self._scan()
        again, self._unsettled = self._unsettled, {}
        touched: set[Claim] = set()
        changed = False
        for name in [name for name in self._files if name not in found]:
            if settled and name in again and again[name] is None:
                touched |= self._drop(name)
                changed = True
            else:
                # Editors save by giving the old file another name before they write the new one.
                self._unsettled[name] = None
        for name, stamp in found.items():
            known = self._files.get(name)
            if known is None or known.stamp != stamp or name in again:
                touched |= self._read(name, stamp, settled=settled and again.get(name) == stamp)
                changed = True
        for claim in touched:
            self._settle(claim)
        if changed:
            self._report()

    def _scan(self) -> dict[str, Stamp]:
        """Names (in order) and stamps of the files that count. Hidden files and editors' temporary ones do not."""
        found = {}
        # By descriptor: a folder that is renamed in between must not look like one whose files are gone.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in sorted(os.listdir(folder)):
                if name == self._only if self._only else _counts(name):
                    try:
                        status = os.stat(name, dir_fd=folder)
                    except OSError:
                        continue  # gone meanwhile, or a link to nowhere
                    if stat.S_ISREG(status.st_mode):
                        found[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
        finally:
            os.close(folder)
        return found

    # -- files ---------------------------------------------------------------------------------------------------------

    def _read(self, name: str, stamp: Stamp, *, settled: bool) -> set[Claim]:
        """Reads a file and gives the objects that it touches. An unreadable one keeps what it gave before."""
        from proxyd.kube.documents import documents  # noqa: PLC0415 - costly (yaml), and needed for this source only

        before = self._files.get(name, _File(stamp, {}, ""))
        reading = _Reading()
        try:
            for document in documents((self._folder / name).read_bytes(), name):
                self._take(document, reading)
        except _UNREADABLE as error:
            reading.objects, reading.problems = before.objects, [_one_line(error)]
        objects, wrong = reading.objects, "; ".join(reading.problems)
        lost = before.objects.keys() - objects.keys()
        if not settled and (lost or wrong):
            # What is there may be taken at once; what is missing, and what seems wrong, must prove true.
            self._unsettled[name] = stamp
            wrong = before.wrong
        if lost and (reading.nameless or not settled):
            objects = {**objects, **{claim: before.objects[claim] for claim in lost}}
        if reading.ignored:
            log.info("kinds ignored in manifest", file=_printable(name), kinds=sorted(reading.ignored))
        self._files[name] = _File(stamp, objects, wrong)
        return self._claim(name, before.objects, objects)

    def _take(self, document: Any, reading: _Reading) -> None:
        """Decodes one document, or each item of a List. Raises ValueError for what is no Kubernetes object at all."""
        if self._stopping():
            raise _StoppedError
        if document is None:
            return
        if not isinstance(document, dict) or not isinstance(kind := document.get("kind"), str):
            raise ValueError("not a Kubernetes object: no kind")
        version = str(document.get("apiVersion", ""))
        if kind.endswith("List") and isinstance(document.get("items"), list):
            for item in document["items"]:
                if isinstance(item, dict) and kind != "List":  # items of typed lists do not name their type
                    item = {"apiVersion": version, "kind": kind.removesuffix("List"), **item}  # noqa: PLW2901
                self._take(item, reading)
        elif (version, kind) in _DECODERS:
            self._decode(version, kind, document, reading)
        else:
            reading.ignored.add(f"{version} {kind}".strip())

    def _decode(self, version: str, kind: str, document: dict[str, Any], reading: _Reading) -> None:
        _fill_in(document, kind)
        try:
            decoded = _DECODERS[version, kind](msgspec.json.encode(document))
        except _UNREADABLE as error:
            reading.nameless += 1
            reading.problems.append(f"{kind} without a readable name: {_one_line(error)}")
            return
        if kind == "Node" and decoded.key[1] != self._node_name:
            return
        if kind == "Service" and not decoded.refused and _without_address(document):
            decoded = decoded._replace(refused="no spec.clusterIP, and nothing here that would allocate one")
        claim = (kind, decoded.key)
        if claim in reading.objects:
            reading.problems.append(f"{_name(claim)} is in this file twice")
        else:
            reading.objects[claim] = decoded

    def _drop(self, name: str) -> set[Claim]:
        """Forgets a file and gives the objects that it gave."""
        objects = self._files.pop(name).objects
        self._store_finding(name, "")
        return self._claim(name, objects, {})

    # -- objects -------------------------------------------------------------------------------------------------------

    def _claim(self, name: str, before: dict[Claim, Decoded[Any]], now: dict[Claim, Decoded[Any]]) -> set[Claim]:
        for claim in before.keys() - now.keys():
            del self._claims[claim][name]
        for claim, decoded in now.items():
            self._claims.setdefault(claim, {})[name] = decoded
        return before.keys() | now.keys()

    def _winner(self, claim: Claim) -> Decoded[Any]:
        files = self._claims[claim]
        return files[min(files)]

    def _settle(self, claim: Claim) -> None:
        """Brings the store up to date for one object."""
        kind, key = claim
        if self._claims[claim]:
            self._intakes[kind].put(self._winner(claim))
        else:
            del self._claims[claim]
            self._intakes[kind].remove(key)

    # -- findings ------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Brings the findings about files up to date: unreadable ones, and objects that another file gives too."""
        losers: dict[str, list[str]] = {}
        missing = {name for name, stamp in self._unsettled.items() if stamp is None}
        for claim, files in self._claims.items():
            if len(files) > 1:
                first, *others = sorted(files.keys() - missing) or ("",)
                for name in others:
                    losers.setdefault(name, []).append(f"{_name(claim)} is in {_printable(first)} already")
        for name, file in self._files.items():
            self._note(name, "; ".join(filter(None, [file.wrong, *losers.get(name, ())])))

    def _note(self, name: str, message: str) -> None:
        """Records what is wrong with a file ("" as name: with the folder), and logs it when it is new."""
        before = self._store_finding(name, message)
        if message and message != before:
            log.warning("manifest not (fully) used", file=_printable(name or str(self._folder)), error=message)

    def _store_finding(self, name: str, message: str) -> str:
        key = ("Manifest", ("", name))
        with self._store.lock:
            before = self._store.unreadable.pop(key, None)
            if message:
                file = _printable(name or str(self._folder))
                self._store.unreadable[key] = Finding("Manifest", file, Reason.UNREADABLE_OBJECT, message)
            if message != (before.message if before else ""):
                self._store.attention()
        return before.message if before else ""


_UNREADABLE = (OSError, ValueError, TypeError, RecursionError, msgspec.MsgspecError)


def read_file(path: str, store: Store, node_name: str) -> None:
    """Reads one file into a store, for a command that answers and ends: what kubectl get -o yaml or -o json wrote.

    Raises ManifestError where it is missing or cannot be read; what single objects do wrong becomes Findings.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
        if not data.strip():
            raise ValueError("it is empty")
        ManifestSource(str(file.parent), store, node_name, only=file.name).read()
    except (OSError, ValueError) as error:
        raise ManifestError(f"manifest file {path}: {getattr(error, 'strerror', None) or error}") from error
    wrong = store.unreadable.get(("Manifest", ("", file.name)))
    if wrong is not None and not (store.services.objects or store.slices.objects):
        raise ManifestError(f"manifest file {path}: {wrong.message}")


def _printable(name: str) -> str:
    """A file's name as text that can be told on: names of files are bytes, and need not be UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _counts(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith((".", "#", "~"))


def _fill_in(document: dict[str, Any], kind: str) -> None:
    """Does what the API server does where decoding does not: objects without a namespace are in "default"."""
    meta = document.get("metadata")
    if isinstance(meta, dict) and kind != "Node":
        meta["namespace"] = meta.get("namespace") or "default"


def _without_address(document: dict[str, Any]) -> bool:
    """Tells whether a Service waits for the API server to allocate its cluster IP."""
    spec = document.get("spec") or {}
    return spec.get("type") != "ExternalName" and not (spec.get("clusterIP") or spec.get("clusterIPs"))


def _name(claim: Claim) -> str:
    return f"{claim[0]} {'/'.join(part for part in claim[1] if part)}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""Every route of the served document, with what it allows and what it forbids, well and badly made.

Whatever is sent: an answer in time, with a status and a body that the document describes; nothing left over.
`FUZZ_EXAMPLES=1000 pytest tests/fuzz` looks longer.
"""

import io
import json
import posixpath
import tarfile
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS

from orchard.injector.operations import TAR
from orchard.injector.orchestrator import openapi
from tests.fuzz.conftest import EXAMPLES, LIMIT, Target

REAL = st.sampled_from([True, True, True, False])
"""Whether a request names what there is; what nobody has made up is a 404 only."""
NOT_CHECKED = (
    "positive_data_acceptance",  # the schema cannot say what an absolute path or a quantity is
    "negative_data_rejection",  # nulls, unknown fields and parameters are accepted on purpose
    "ignored_auth",  # has a test of its own, for every route
)
WHOLE_DIRECTORIES = ("GET /sandboxes/{id}/archive", "DELETE /sandboxes/{id}/files")
ENDLESS = "GET /sandboxes/{id}/files/watch"


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """Tar archives, some of them hostile, some cut short."""
    names = st.one_of(st.sampled_from(["a", "a/b", "../c", "/d", ".", "", "link/e"]), st.text(max_size=20))
    kinds = st.sampled_from(
        [
            *(tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE),
            *(tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE, b"?"),
        ]
    )
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, link in draw(st.lists(st.tuples(names, kinds, names), max_size=5)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            content = draw(st.binary(max_size=100)) if kind == tarfile.REGTYPE else b""
            info.size, info.mode = len(content), draw(st.integers(0, 0o7777))
            info.mtime = draw(st.sampled_from([0, 1, 1e9, -1, 1e15, 1.5]))
            archive.addfile(info, io.BytesIO(content))
    data = target.getvalue()
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


schemathesis.openapi.media_type(TAR, st.one_of(st.binary(max_size=2000), archives()))


@schemathesis.serializer(TAR)
def as_it_is(_context: schemathesis.SerializationContext, body: Any) -> Any:
    return body if isinstance(body, bytes) else str(body).encode()


schema = schemathesis.openapi.from_dict(json.loads(json.dumps(openapi.document())))
"""What is served: tests/injector/test_openapi.py."""


@schema.parametrize()
@schema.given(real=REAL)
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES < 100
)
def test_an_answer_is_as_the_document_says(case: schemathesis.Case, target: Target, real: bool) -> None:
    _aim(case, target, real)
    response = case.call(base_url=target.url, headers={"X-API-Key": target.key}, timeout=LIMIT)
    case.validate_response(response, excluded_checks=[CHECKS.get_one(name) for name in NOT_CHECKED])
    if case.operation.label in ("POST /sandboxes", "POST /sandboxes/{id}/fork"):
        target.delete(keep=target.sandbox_id)
    if case.method == "DELETE":
        target.restore()


def _aim(case: schemathesis.Case, target: Target, real: bool) -> None:
    """Let it reach something, and bound what it may ask for: waits, numbers of sandboxes."""
    parameters = case.path_parameters
    if real and "id" in parameters:
        parameters["id"] = target.sandbox_id
    if real and "job" in parameters:
        parameters["job"] = target.job_id
    path = (case.query or {}).get("path")
    if case.operation.label in WHOLE_DIRECTORIES and isinstance(path, str):
        top = posixpath.normpath(f"/{path.lstrip('/')}").count("/") == 1
        case.query["path"] = "/workspace" if top else path  # the machine's own directories take minutes
    if case.operation.label == ENDLESS:
        case.query = {**(case.query or {}), "timeout": "0.1"}
    if isinstance(case.body, dict):
        if case.operation.label == "POST /images/pull" and isinstance(case.body.get("reference"), str):
            case.body["reference"] = f"Nowhere/{case.body['reference']}"  # no registry may be asked by this
        for name, most in (("timeout_seconds", 1.0), ("count", 3)):
            if isinstance(case.body.get(name), int | float) and case.body[name] > most:
                case.body[name] = most
        if real and isinstance(case.body.get("image"), str) and case.operation.label == "POST /sandboxes":
            case.body["image"] = "host"

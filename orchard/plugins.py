"""Public interface for plug-ins: the types that they implement and receive. docs/extending.md explains.

Only what stands here is kept stable for packages of others; everything else may move.
"""

from typing import Any

import msgspec

from orchard.actions.domain import FrontDomain, TaskRoute
from orchard.injector.backend import Backend
from orchard.pipelines.datasets.exporters.interface import Exporter, Record
from orchard.pipelines.datasets.foreign import Foreign, LayoutReader
from orchard.pipelines.datasets.rows import Row
from orchard.pipelines.domain import PipelineDomain, ReleasedLayout, TaskKind
from orchard.pipelines.rl.loss_settings import LossSettings
from orchard.pipelines.tasks.proving import ProofContext, Proven, Refuted
from orchard.pipelines.tasks.sources import TaskSource
from orchard.pipelines.values.judges import Judge
from orchard.pipelines.values.replies import BadReply, Fault, Reading
from orchard.schemas.campaigns import Budget
from orchard.schemas.judging import JudgeVerdict
from orchard.schemas.messages import ToolCall
from orchard.schemas.outcomes import AbortCause, ExitStatus, Reward
from orchard.schemas.plugins import PluginError
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import PluginGrading, StateCheck, SWETests, Task, WorldUse
from orchard.workers.domain import WorkerDomain
from orchard.workers.episode.machine import CommandOutcome, Machine
from orchard.workers.episode.pictures import Picture, read_picture
from orchard.workers.episode.worlds import OpenWorld, World, WorldContext
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.judgement import Grader, Judgement
from orchard.workers.harnesses.interface import Episode, Harness, HarnessResult
from orchard.workers.harnesses.programs.record import (
    AcpAgent,
    FileSubmission,
    McpClient,
    NpmBinary,
    NpmPackage,
    OwnFiles,
    Program,
    PythonPackages,
    SuppliedFiles,
)
from orchard.workers.harnesses.programs.runner import ProgramHarness
from orchard.workers.judges.interface import Ask, BadVerdict, Evidence, EvidencePicture, JudgeProtocol

__all__ = [
    "AbortCause",
    "AcpAgent",
    "Ask",
    "Backend",
    "BadReply",
    "BadVerdict",
    "Budget",
    "CommandOutcome",
    "Episode",
    "Evidence",
    "EvidencePicture",
    "ExitStatus",
    "Exporter",
    "Fault",
    "FileSubmission",
    "Foreign",
    "FrontDomain",
    "Grader",
    "Harness",
    "HarnessResult",
    "InfrastructureError",
    "Judge",
    "JudgeProtocol",
    "JudgeVerdict",
    "Judgement",
    "LayoutReader",
    "LossSettings",
    "Machine",
    "McpClient",
    "NpmBinary",
    "NpmPackage",
    "OpenWorld",
    "Opening",
    "OwnFiles",
    "Picture",
    "PipelineDomain",
    "PluginError",
    "PluginGrading",
    "Program",
    "ProgramHarness",
    "ProofContext",
    "Protected",
    "Proven",
    "PythonPackages",
    "Reading",
    "Record",
    "Refuted",
    "ReleasedLayout",
    "Reward",
    "Row",
    "SWETests",
    "StateCheck",
    "SuppliedFiles",
    "Task",
    "TaskKind",
    "TaskRoute",
    "TaskSource",
    "ToolCall",
    "WorkerDomain",
    "World",
    "WorldContext",
    "WorldUse",
    "graded_by",
    "read_picture",
]

Opening = WorldContext
"""The name of WorldContext in packages that were written before it."""


def graded_by(grader: Grader, settings: msgspec.Struct) -> PluginGrading:
    """`grading` of a task that a plug-in's grader judges."""
    return PluginGrading(grader=grader.name, settings=_plain(settings), in_place=grader.in_place)


def _plain(settings: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    return plain

"""What is done before and after rollouts of the domain: a task source, their proof, a layout of rows."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from orchard.pipelines.datasets.foreign import next_node
from orchard.plugins import (
    ExitStatus,
    Exporter,
    Foreign,
    PluginGrading,
    ProofContext,
    Protected,
    Proven,
    Record,
    Refuted,
    Row,
    Task,
    WorldUse,
)
from orchard.schemas.messages import MessageNode, Role
from orchard.storage.blobs import BlobStore


class Source:
    def tasks(self, numbers: str) -> Iterator[Task]:
        for number in map(int, numbers.split(",")):
            yield Task(
                task_id=f"sum-{number}",
                source="sums",
                repo="sums",
                image="host",
                workdir="/tmp",
                statement=f"Reach {number}.",
                grading=PluginGrading(grader="sums", settings={"total": number}, in_place=True),
                world=WorldUse(kind="sums", settings={"total": number}),
            )


async def prove(task: Task, _: ProofContext) -> Proven | Refuted:
    assert isinstance(task.grading, PluginGrading)
    if (total := task.grading.settings["total"]) < 0:
        return Refuted(reason="invalid", detail=f"nothing adds up to {total}")
    return Proven(task=task, protected=Protected.VALUE)


def _line(row: Row) -> Iterator[Record]:
    yield {"task": row.task_id, "said": [message["content"] for message in json.loads(row.messages)]}


LINES = Exporter(
    name="sums-lines",
    consumer="who adds",
    schema=pa.schema({"task": pa.string(), "said": pa.list_(pa.string())}),
    project=_line,
    losses=lambda _: iter(()),
    format="jsonl",
)


def read_lines(files: Sequence[Path], _: BlobStore, harness: str) -> Iterator[Foreign]:
    for number, line in enumerate(files[0].read_text().splitlines()):
        told = json.loads(line)
        nodes: list[MessageNode] = []
        for at, said in enumerate(told["said"]):
            role = Role.SYSTEM if at == 0 else Role.USER if at % 2 else Role.ASSISTANT
            nodes.append(next_node(nodes, role, said))
        yield Foreign(
            task_id=told["task"],
            source="sums",
            repo="sums",
            harness=harness,
            model="m",
            sample=0,
            row=number,
            nodes=nodes,
            exit_status=ExitStatus.FINISHED,
            resolved=True,
            layout="sums-lines",
            tools="[]",
            metadata="{}",
        )

"""The TOML configuration of a dataset, and the hash of it."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.domain import presets
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.held_out import HeldOut, listed
from orchard.pipelines.values.curves import EPS, Convention
from orchard.schemas.faults import fault_sentence, not_finite
from orchard.schemas.identity import check_name, digest
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.protection import Protected
from orchard.schemas.quantities import Unit
from orchard.schemas.toml_text import parsed_toml

Count = Annotated[int, msgspec.Meta(ge=0)]
Strategy = Literal[
    "random", "diverse-repo", "concentrated-repo", "multi-file", "large-diff", "composite", "shortest"
]
"""Strategies of the paper's Table 9, and the shortest of each task, of section 4.3."""
Pictures = Literal["none", "shown"] | Annotated[int, msgspec.Meta(ge=1)]


class CandidateSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rollouts are candidates; an empty list means all."""

    campaigns: tuple[str, ...] = ()
    """Names of the campaigns whose rollouts are candidates. The campaign `measured` is taken only where it is
    named."""
    harnesses: tuple[str, ...] = ()
    """Names of the harnesses whose rollouts are candidates."""
    models: tuple[str, ...] = ()
    """Names of the models whose rollouts are candidates."""
    task_sources: tuple[str, ...] = ()
    """Sources of the tasks whose rollouts are candidates."""
    model_kinds: tuple[ModelKind, ...] = (ModelKind.MODEL,)
    """Rollouts that an oracle played are taken only where they are named: `["oracle"]`."""
    truncated: bool = True
    """Take rollouts that ran out of a budget and were graded."""
    unanswered: bool = False
    """Take also rollouts whose time ran out during a model call: the model's server may have been busy."""
    published_rules: bool = False
    """Take also rollouts of campaigns with `--published-rules`, whose rewards can be forged."""
    min_protected: Protected | None = None
    """Take rollouts whose reward has at least this label: `value`, `echo`, `bit` or `inside`, as which a
    reward without a label counts; None: all."""
    human_labels: tuple[str, ...] = ()
    """Take only rollouts to which people gave one of these labels; empty: all."""
    without_human_labels: tuple[str, ...] = ()
    """Leave out rollouts to which people gave one of these labels."""
    min_human_score: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """Take only rollouts with at least this human score, and none without a score; None: all."""
    exclude: tuple[str, ...] = ()
    """Patterns over task ids and repositories that are left out; `@FILE` reads patterns from a file beside
    this one."""
    unproven: bool = False
    """Take also rollouts of tasks that `orchard tasks validate` has not proven; those of rejected tasks
    never."""


class Values(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which turns of unresolved trajectories train."""

    annotator: str = ""
    """Layer whose newest annotation counts; empty: unresolved trajectories are left out."""
    eps: Annotated[float, msgspec.Meta(gt=0, le=1)] = EPS
    """Minimum credit of a step in a rise segment."""
    segments: Convention = "actions"
    """`paper-closed` also takes the step before each rise."""


class PassRateCondition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the pass rate of a trajectory's task, over all graded rollouts, trained on or not."""

    campaigns: tuple[str, ...] = ()
    """Campaigns whose rollouts count; an empty list means all but `measured`."""
    models: tuple[str, ...] = ()
    """Models whose rollouts count; an empty list means those of the trajectory's own model, its teacher."""
    rollouts: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Minimum number of graded rollouts behind a pass rate; the paper takes eight."""
    above: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Keep tasks with a pass rate above this."""
    at_most: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Keep tasks with a pass rate of at most this."""

    def __post_init__(self) -> None:
        if self.above >= self.at_most:
            raise ValueError(
                f"no pass rate is above {self.above:g} and at most {self.at_most:g}: lower `above`"
            )


class MixturePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the mixture; an empty list means all. A trajectory belongs to the first part that matches."""

    weight: Annotated[float, msgspec.Meta(gt=0)]
    """Share of this part in the trajectories, beside the weights of the others."""
    campaigns: tuple[str, ...] = ()
    """Names of campaigns."""
    harnesses: tuple[str, ...] = ()
    """Names of harnesses."""
    models: tuple[str, ...] = ()
    """Names of models, the teachers."""
    task_sources: tuple[str, ...] = ()
    """Sources of tasks."""


class Filters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters that exclude examples; the build counts what each of them excluded."""

    max_tokens: Annotated[int, msgspec.Meta(gt=0), Unit("tokens")] = 65536
    """Maximum tokens of an example."""
    bad_turns: Literal["drop", "mask"] = "drop"
    """A call of a tool that the harness does not define, an action that does not parse: leave the whole
    example out, as the paper does, or keep such turns as context that does not train."""


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many trajectories are taken, and which. The filters come after, so a dataset may have fewer."""

    strategy: Strategy = "random"
    """How trajectories are chosen."""
    resolved: Count | None = None
    """Maximum resolved trajectories; None: all."""
    unresolved: Count | None = None
    """Maximum unresolved trajectories, counted among those with a rise segment; None: all."""
    seed: int = 0
    """Seed of random choices and ties."""
    per_task: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Maximum trajectories per task, resolved ones first; None: all."""
    per_repo: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Maximum trajectories per repository, resolved ones first; None: all."""
    preferences: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Take as many resolved as unresolved trajectories of each task, at most this many of either, and none of
    other tasks; all turns of both are in the loss. `orchard sft` with `dpo` learns from them. None: no
    preferences."""

    def __post_init__(self) -> None:
        others = ("resolved", "unresolved", "per_task", "per_repo")
        if self.preferences and (set_ := [name for name in others if getattr(self, name) is not None]):
            raise ValueError(
                f"`preferences` takes pairs of each task: leave {' and '.join(set_)} out, or choose by "
                "`pass_rate` and `source`"
            )


class DatasetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration file of a dataset."""

    name: str
    """Name of the dataset, in its manifest and in the log."""
    tokenizer: str
    """Directory, or name on the Hub, of a tokenizer with a chat template."""
    source: CandidateSource = CandidateSource()
    held_out: HeldOut = HeldOut()
    values: Values = Values()
    filters: Filters = Filters()
    selection: Selection = Selection()
    pass_rate: PassRateCondition | None = None
    """Condition on the pass rate of a trajectory's task; None: none."""
    mixture: tuple[MixturePart, ...] = ()
    """Parts whose weights say in which proportion trajectories are taken, among resolved ones and among
    unresolved ones. No trajectory is taken twice: the scarcest part decides how many there are. Empty: as
    they come."""
    authors: tuple[str, ...] = ()
    """Train only turns that these models said; what others said is context. Empty: all turns, but where a
    teacher took over (`orchard submit --takeover`) its turns alone."""
    stored_tokens: bool = True
    """Use sampled token ids where they are stored, instead of tokenizing again."""
    pairs: bool = False
    """Make one example for each trained turn: all before it is context, whose beginning is cut off where
    it is longer than `filters.max_tokens`. The examples keep the id of their trajectory."""
    pictures: Pictures = "none"
    """Pictures of an example: those that the model was shown (`shown`), or this many, the newest,
    whatever it was shown. With `none`, trajectories with pictures are left out. The tokenizer must be
    that of a vision-language model, with its image processor, and examples are pairs."""

    def __post_init__(self) -> None:
        check_name(self.name, "dataset")
        if self.pictures != "none" and not self.pairs:
            raise ValueError("pictures need `pairs = true`: each turn was shown other pictures")
        if self.selection.preferences and (self.pairs or self.mixture):
            raise ValueError(
                "`selection.preferences` makes pairs of whole trajectories: leave `pairs` and `mixture` out"
            )


def _over_preset(tree: dict[str, Any], file: Path) -> dict[str, Any]:
    name = tree.pop("preset", None)
    if name is None:
        return tree
    known = presets(lambda domain: domain.dataset_preset)
    if name not in known:
        raise DatasetError(f"{file}: no preset is named {name!r}: choose one of {', '.join(known)}")
    under = known[name]
    merged = {
        key: {**under[key], **tree[key]} if isinstance(under.get(key), dict) else tree[key] for key in tree
    }
    return {**under, **merged}


def read_settings(file: Path) -> DatasetSettings:
    """The settings of a TOML file. Raises DatasetError that names the key and the fix."""
    try:
        tree = parsed_toml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DatasetError(f"{file} does not exist: write a dataset's configuration there") from None
    except OSError as error:
        raise DatasetError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DatasetError(f"{file} is not valid TOML: {error}") from error
    try:
        tree = _over_preset(tree, file)
        if key := not_finite(tree):
            raise DatasetError(f"{file}: {key}: this number is not finite: write one that is")
        made = msgspec.convert(tree, DatasetSettings)
        exclude = listed(made.source.exclude, file.parent)
    except TaskError as error:
        raise DatasetError(f"{file}: source.exclude: {error}") from error
    except msgspec.ValidationError as error:
        said = fault_sentence(tree, DatasetSettings, error)
        raise DatasetError(f"{file}: {said}; docs/datasets.md explains every key") from error
    source = msgspec.structs.replace(made.source, exclude=exclude)
    return msgspec.structs.replace(made, source=source)


def config_hash(settings: DatasetSettings, tokenizer_sha256: str) -> str:
    """32 hexadecimal digits over the settings; the tokenizer counts by what it is, not by where it lies. A
    key that is younger than stored datasets counts only where it is not the default."""
    plain = msgspec.to_builtins(msgspec.structs.replace(settings, tokenizer=""), order="deterministic")
    if not settings.pairs:
        del plain["pairs"]
    if settings.pictures == "none":
        del plain["pictures"]
    for key in ("pass_rate", "mixture", "authors"):
        if not plain[key]:
            del plain[key]
    if not settings.selection.preferences:
        del plain["selection"]["preferences"]
    younger = ("unanswered", "published_rules", "min_protected")
    for key in (*younger, "human_labels", "without_human_labels", "min_human_score"):
        if not plain["source"][key]:
            del plain["source"][key]
    return digest([msgspec.Raw(msgspec.json.encode(plain)), tokenizer_sha256], 32)

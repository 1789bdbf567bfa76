"""`python -m orchard.pipelines.policy MODEL_DIR`: the same as `orchard serve-policy`."""

import argparse
import logging
import sys
from pathlib import Path

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.policy.serving import ServingSettings, serve


def main(arguments: list[str] | None = None) -> int:
    """Run with arguments, the process's own by default. An error that the user can fix is printed as one
    sentence, exit code 1."""
    defaults = {name: value for name, value in _defaults().items() if name != "model"}
    parser = argparse.ArgumentParser(prog="python -m orchard.pipelines.policy", description=__doc__)
    parser.add_argument("model", type=Path)
    for name, value in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            parser.add_argument(flag, action="store_true")
        else:
            kind = Path if name.endswith("_file") else str if value is None else type(value)
            parser.add_argument(flag, type=kind, default=value)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return serve(ServingSettings(**vars(parser.parse_args(arguments))))
    except (ModelError, DatasetError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1


def _defaults() -> dict[str, object]:
    names = ServingSettings.__struct_fields__
    values = ServingSettings.__struct_defaults__
    return dict(zip(names[-len(values) :], values, strict=True))


if __name__ == "__main__":
    sys.exit(main())

"""An environment for mini-swe-agent: `orchard.adapters.mini_swe_agent.OrchardEnvironment`."""

import platform
from typing import Any

from orchard.schemas.installation import install_command

try:
    from minisweagent.exceptions import Submitted
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"mini-swe-agent is missing: {install_command('mini-swe-agent')}", name=error.name
    ) from error

import msgspec

from orchard.injector.blocking import SandboxClient
from orchard.injector.results import check_outlived

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First line of output that ends the task; the rest of the output is the submission."""


class OrchardEnvironmentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `environment:` of the agent's configuration."""

    image: str
    cwd: str = "/workspace"
    env: dict[str, str] = {}
    timeout: float = 30.0
    """Time limit of one command in seconds."""
    block_network: bool = True
    cpu: str | None = None
    memory: str | None = None
    base_url: str | None = None
    """Address of the service, whose key is in SANDBOX_API_KEY; None: SANDBOX_BASE_URL."""


class OrchardEnvironment:
    """Holds a sandbox until `cleanup` or until it is garbage-collected."""

    def __init__(self, **config: Any) -> None:
        self.config = msgspec.convert(config, OrchardEnvironmentConfig)
        self._client = SandboxClient(self.config.base_url)
        self._sandbox = self._client.create_sandbox(
            self.config.image,
            self.config.block_network,
            cpu=self.config.cpu,
            memory=self.config.memory,
            env=self.config.env,
        )

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Runs a command. Raises Submitted if its output ends the task, and SandboxError if the sandbox is
        dead or ends under it."""
        job = self._sandbox.exec(
            str(action.get("command", "")),
            timeout or self.config.timeout,
            cwd or self.config.cwd,
            login_shell=True,
            merge_output=True,
        )
        check_outlived(job)
        said = job.error or ""
        output = {"output": job.stdout, "returncode": job.exit_code, "exception_info": said}
        first, _, rest = job.stdout.lstrip().partition("\n")
        if first.strip() == SUBMIT and job.succeeded:
            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        return output

    def get_template_vars(self, **variables: Any) -> dict[str, Any]:
        return {**self._shown(), **platform.uname()._asdict(), **variables}

    def serialize(self) -> dict[str, Any]:
        """Settings for the trajectory, without the values of variables, which may be secrets."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self._shown(), "environment_type": kind}}}

    def cleanup(self) -> None:
        """Deletes the sandbox; further calls do nothing."""
        self._client.close()

    def _shown(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self.config), "env": sorted(self.config.env)}

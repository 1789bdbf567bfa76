"""An environment for Harbor: its import path is `orchard.adapters.harbor_environment:OrchardEnvironment`."""

from pathlib import Path

from orchard.schemas.installation import install_command

try:
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"harbor is missing: {install_command('harbor')}, on Python 3.12 or later",
        name=error.name,
    ) from error

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.results import check_outlived
from orchard.injector.sandbox import AsyncSandbox

LONGEST = 24 * 3600.0
"""Time limit in seconds of commands without one of their own."""


class OrchardEnvironment(BaseEnvironment):
    """Runs a task in a sandbox of the service at SANDBOX_BASE_URL, made from its `docker_image`."""

    _client: AsyncSandboxClient | None = None
    _sandbox: AsyncSandbox | None = None

    @staticmethod
    def type() -> str:
        return "orchard"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        if not self.task_env_config.docker_image:
            raise ValueError(
                "the task names no `docker_image`: build its Dockerfile, import the image into the sandbox "
                "service, and name it in task.toml under [environment]"
            )

    async def start(self, force_build: bool) -> None:
        """Creates the sandbox; images are never built here."""
        cpus, memory = self._effective_cpus, self._effective_memory_mb
        self._client = AsyncSandboxClient()
        self._sandbox = await self._client.create_sandbox(
            str(self.task_env_config.docker_image),
            not self._network_is_public,
            cpu=str(cpus) if cpus else None,
            memory=f"{memory}Mi" if memory else None,
            env=self._startup_env(),
        )
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Deletes the sandbox even if `delete` is false: nobody else would."""
        if self._client is not None:
            await self._client.close()
            self._client = self._sandbox = None

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command. Raises RuntimeError on a timeout, SandboxFailed if the sandbox ends under it."""
        runs_as = self._resolve_user(user)
        job = await self._running.exec(
            command,
            timeout_sec or LONGEST,
            cwd or self.task_env_config.workdir or ".",
            self._merge_env(env),
            user=None if runs_as is None else str(runs_as),
        )
        if job.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        check_outlived(job)
        code = 1 if job.exit_code is None else job.exit_code
        return ExecResult(stdout=job.stdout, stderr=job.stderr or job.error, return_code=code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Uploads a file with its mode."""
        mode = Path(source_path).stat().st_mode & 0o7777
        await self._running.upload_file(source_path, target_path, mode=mode)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._running.upload_directory(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._running.download_file(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Downloads a directory without links that could lead out of `target_dir`."""
        await self._running.download_directory(source_dir, target_dir)

    @property
    def _running(self) -> AsyncSandbox:
        if self._sandbox is None:
            raise RuntimeError("the environment has no sandbox: call start() first")
        return self._sandbox

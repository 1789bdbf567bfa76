"""A sandbox provider for inspect_ai: `sandbox=("orchard", "IMAGE")` in a task, `--sandbox orchard:IMAGE`."""

import uuid
from typing import Any, overload

from orchard.schemas.installation import install_command

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        sandboxenv,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"inspect_ai is missing: {install_command('inspect')}", name=error.name
    ) from error

from typing import Literal

from orchard.injector.agent.protocol import COMMAND_TIMEOUT, WORKSPACE
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxFileTooLarge, SandboxRequestInvalid
from orchard.injector.results import check_outlived
from orchard.injector.sandbox import AsyncSandbox
from orchard.schemas.sandboxes import JobEnding


@sandboxenv(name="orchard")
class OrchardSandbox(SandboxEnvironment):
    """Gives each sample a sandbox of the service at SANDBOX_BASE_URL, without network."""

    def __init__(self, client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self._client = client
        self.sandbox = sandbox

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Creates a sandbox; `config` is the name of an image."""
        client = AsyncSandboxClient()
        try:
            return {"default": cls(client, await client.create_sandbox(str(config or "host")))}
        except BaseException:
            await client.close()
            raise

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """Deletes the sandbox of `sample_init`."""
        for environment in environments.values():
            await environment.as_type(cls)._client.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command once, whatever `timeout_retry` says: it may not be safe to repeat. Raises
        SandboxFailed if the sandbox ends under it."""
        stdin, words, staged = input, cmd, ""
        if isinstance(input, bytes):
            try:
                stdin = input.decode()
            except UnicodeDecodeError:
                staged, stdin = f"/tmp/stdin-{uuid.uuid4().hex}", None
                await self.sandbox.upload_content(input, staged)
                words = ["/bin/sh", "-c", f'exec "$@" < {staged}', "sh", *cmd]
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            job = await self.sandbox.exec(
                words,
                timeout or COMMAND_TIMEOUT * 12,
                _place(cwd or ""),
                env,
                stdin=stdin if isinstance(stdin, str) else None,
                user=user,
                output_limit=limit,
            )
        except SandboxRequestInvalid as error:
            if user is None:
                raise
            return ExecResult(False, 126, "", str(error))
        finally:
            if staged:
                await self.sandbox.remove(staged)
        if job.timed_out:
            raise TimeoutError(f"the command did not end within {timeout} s")
        check_outlived(job)
        if job.ending is JobEnding.NOT_PERMITTED:
            raise PermissionError(job.error)
        if max(job.stdout_bytes, job.stderr_bytes) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, job.stdout)
        code = job.exit_code if job.exit_code is not None else 1
        said = job.stderr or ("" if job.succeeded else job.error or "")
        return ExecResult(job.succeeded, code if code >= 0 else 128 - code, job.stdout, said)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            await self.sandbox.upload_content(contents, _place(file))
        except SandboxRequestInvalid as error:
            raise _of_a_directory(error) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self.sandbox.download_content(_place(file), limit=limit)
        except SandboxFileTooLarge as error:
            limit_said = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit_said, None) from error
        except SandboxRequestInvalid as error:
            raise _of_a_directory(error) from error
        return data.decode() if text else data


def _place(path: str) -> str:
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"


def _of_a_directory(error: SandboxRequestInvalid) -> Exception:
    return IsADirectoryError(str(error)) if "directory" in str(error).lower() else error

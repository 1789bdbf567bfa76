"""`demo-sft`, `demo-rl`, `demo-matrix`, `demo-claw`, `demo-gui`: from tasks to a model that learned."""

from typing import Annotated

import typer
import uvloop

from orchard.actions.session import Session
from orchard.terminal.console import console


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""

    @app.command(name="demo-sft")
    def demo_sft(
        context: typer.Context,
        tasks: Annotated[int, typer.Option(help="Training tasks.", min=1)] = 500,
        samples: Annotated[int, typer.Option(help="Oracle rollouts of each.", min=1)] = 3,
        held_out: Annotated[int, typer.Option(help="Held-out tasks.", min=1)] = 200,
        epochs: Annotated[int, typer.Option(help="Passes over the dataset.", min=1)] = 8,
        shape: Annotated[str, typer.Option(help="Model shape.")] = "tiny-1m",
        seed: Annotated[int, typer.Option(help="Of tasks, weights and order.")] = 0,
    ) -> None:
        """Distil the oracle into a tiny model from scratch; measure it on held-out tasks before and after.

        Needs no model, no key and no GPU. Stopped in the middle it goes on where it was.
        """
        from orchard.demo_sft import Demo, DemoSettings, show
        from orchard.pipelines.models.errors import require_torch

        require_torch("orchard demo-sft")
        session: Session = context.obj
        settings = DemoSettings(
            tasks=tasks, samples=samples, held_out=held_out, epochs=epochs, shape=shape, seed=seed
        )
        demo = Demo(session.config.store, settings)
        show(uvloop.run(demo.run()))
        console.print(f"the model: {demo.model}", highlight=False)

    @app.command(name="demo-matrix")
    def demo_matrix(
        context: typer.Context,
        tasks: Annotated[int, typer.Option(help="Training tasks of the base.", min=1)] = 160,
        lessons: Annotated[int, typer.Option(help="Training tasks of each harness.", min=1)] = 48,
        held_out: Annotated[int, typer.Option(help="Held-out tasks.", min=1)] = 20,
        seeds: Annotated[int, typer.Option(help="Policies of each harness.", min=1)] = 1,
        epochs: Annotated[int, typer.Option(help="Passes over the log of a policy's harness.", min=1)] = 12,
        base_epochs: Annotated[int, typer.Option(help="Passes of the base before.", min=1)] = 20,
        seed: Annotated[int, typer.Option(help="Of tasks, weights and order.")] = 0,
    ) -> None:
        """Small policies, each taught in one harness, on held-out tasks in three: Table 10 of the paper.

        Needs no model, no key and no GPU, and a store of its own: its tasks have the ids of those of `orchard
        demo-sft`. Stopped in the middle it goes on where it was.
        """
        from orchard.demo_matrix import MatrixDemo, MatrixSettings, show
        from orchard.pipelines.models.errors import require_torch

        require_torch("orchard demo-matrix")
        session: Session = context.obj
        settings = MatrixSettings(
            tasks=tasks,
            lessons=lessons,
            held_out=held_out,
            seeds=seeds,
            epochs=epochs,
            base_epochs=base_epochs,
            seed=seed,
        )
        demo = MatrixDemo(session.config.store, settings)
        show(demo, uvloop.run(demo.run()))

    @app.command(name="demo-claw")
    def demo_claw(
        context: typer.Context,
        tasks: Annotated[int, typer.Option(help="Training tasks, in 150 worlds.", min=1)] = 240,
        held_out: Annotated[int, typer.Option(help="Held-out tasks, in 10 others.", min=1)] = 60,
        epochs: Annotated[int, typer.Option(help="Passes over the solver's log.", min=1)] = 16,
        steps: Annotated[int, typer.Option(help="Steps of reinforcement learning.", min=1)] = 16,
        seed: Annotated[int, typer.Option(help="Of worlds, weights and orders.", min=0)] = 0,
        start: Annotated[int, typer.Option(help="Other weights and orders, the same worlds.", min=0)] = 0,
    ) -> None:
        """Worlds of services made and proven; a tiny assistant distilled, and rewarded by their test scripts.

        Needs no model, no key and no GPU. It ends with the matrix of both policies in two harnesses. Stopped
        in the middle it goes on where it was. `--start 1` trains and measures again over the same worlds.
        """
        from orchard.demo_claw import ClawDemo, ClawSettings, show
        from orchard.pipelines.models.errors import require_torch

        require_torch("orchard demo-claw")
        session: Session = context.obj
        settings = ClawSettings(
            tasks=tasks, held_out=held_out, epochs=epochs, steps=steps, seed=seed, start=start
        )
        demo = ClawDemo(session.config.store, settings)
        show(uvloop.run(demo.run()))
        console.print(f"the matrix: {demo.report}", highlight=False)

    @app.command(name="demo-rl")
    def demo_rl(
        context: typer.Context,
        steps: Annotated[int, typer.Option(help="Optimizer steps.", min=1)] = 8,
        prompts: Annotated[int, typer.Option(help="Groups in each step.", min=1)] = 8,
        method: Annotated[str, typer.Option(help="bar, fixed (GRPO), dynamic (DAPO) or frugal.")] = "bar",
        lr: Annotated[float, typer.Option(help="Learning rate.")] = 3e-4,
        pool: Annotated[int, typer.Option(help="Training tasks to measure.", min=1)] = 160,
        samples: Annotated[int, typer.Option(help="Rollouts of each held-out task.", min=1)] = 2,
        deaths: Annotated[
            float, typer.Option("--sandbox-deaths", help="Share of sandboxes to destroy.", min=0, max=1)
        ] = 0.0,
        seed: Annotated[int, typer.Option(help="Of the order of tasks.")] = 0,
    ) -> None:
        """Train the policy of `orchard demo-sft` further on rewards from real tests, in balanced groups.

        Needs no model, no key and no GPU. Stopped in the middle it goes on where it was.
        """
        from orchard.demo_rl import RlDemo, demo_settings, show
        from orchard.pipelines.models.errors import require_torch

        require_torch("orchard demo-rl")
        session: Session = context.obj
        settings = demo_settings(
            steps=steps,
            prompts=prompts,
            method=method,
            lr=lr,
            pool=pool,
            samples=samples,
            deaths=deaths,
            seed=seed,
        )
        demo = RlDemo(session.config.store, settings)
        show(uvloop.run(demo.run()))
        console.print(f"curves: {demo.directory / 'curves.png'}", highlight=False)

    @app.command(name="demo-gui")
    def demo_gui(
        context: typer.Context,
        tasks: Annotated[int, typer.Option(help="Tasks that the oracle plays.", min=1)] = 160,
        held_out: Annotated[int, typer.Option(help="Tasks to measure on.", min=1)] = 60,
        drills: Annotated[int, typer.Option(help="Drawn screens to learn to see from.", min=1)] = 16_000,
        episodes: Annotated[int, typer.Option(help="Drawn episodes to learn to act from.", min=1)] = 2_000,
        epochs: Annotated[int, typer.Option(help="Passes over the oracle's log.", min=1)] = 3,
        steps: Annotated[int, typer.Option(help="Optimizer steps on rewards; 0: none.", min=0)] = 4,
        slots: Annotated[int, typer.Option(help="Browsers at once.", min=1)] = 4,
        seed: Annotated[int, typer.Option(help="Of weights and orders.", min=0)] = 0,
    ) -> None:
        """Teach a vision-language model from nothing to click on what it sees, in real Chromium.

        Needs no model, no key and no GPU. Stopped in the middle it goes on where it was.
        """
        from orchard.demo_gui import GuiDemo, GuiDemoSettings, show
        from orchard.pipelines.models.errors import require_torch

        require_torch("orchard demo-gui")
        session: Session = context.obj
        settings = GuiDemoSettings(
            seed=seed,
            tasks=tasks,
            held_out=held_out,
            drills=drills,
            episodes=episodes,
            epochs=epochs,
            rl_steps=steps,
            slots=slots,
        )
        demo = GuiDemo(session.config.store, settings)
        result = uvloop.run(demo.run())
        show(result)
        if result.policies:
            console.print(f"curves: {demo.directory / 'curves.png'}", highlight=False)

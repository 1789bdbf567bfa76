"""Follows a campaign on a terminal."""

import time

from rich.live import Live

from orchard.actions.campaign_status import CampaignView
from orchard.actions.campaigns import follow_campaign
from orchard.actions.session import Session
from orchard.terminal.campaign_tables import campaign_line, campaign_table
from orchard.terminal.console import console

PLAIN_SECONDS = 10.0
"""Seconds between progress lines if the output is no terminal."""


async def watch_campaign(session: Session, name: str, every: float) -> CampaignView:
    """Shows the campaign until it is over, stopped or stuck, and returns the last view."""
    shown = time.monotonic()
    with Live(console=console, refresh_per_second=4) as live:
        async for status in follow_campaign(session, name, every):
            view = status.campaigns[0]
            live.update(campaign_table(view, status.pipeline))
            if not console.is_terminal and time.monotonic() - shown > PLAIN_SECONDS:
                shown = time.monotonic()
                console.print(campaign_line(view, status.pipeline), highlight=False)
        live.stop()
        console.print()
    return view

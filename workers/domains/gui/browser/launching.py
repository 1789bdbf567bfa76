"""Starts Chromium in a sandbox: its command line, its network rules, and its debugging port."""

import json
import shlex

from orchard.schemas.gui import BrowserSettings
from orchard.schemas.outcomes import AbortCause
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError

INSTALL = "apt-get install chromium"
HOME = "/tmp/orchard-browser"
SITE_PORT = 8480
"""Port on the sandbox's loopback where a reverse tunnel serves the task's site."""
SITES = "*.test"
"""Host names of generated sites. No public name ends in `.test` (RFC 6761)."""
START_SECONDS = 60.0
NOT_INSTALLED = 69
_POLICY = "/etc/chromium/policies/managed/orchard.json"
_CLOSED = (
    *("file://*", "chrome://*", "chrome-untrusted://*", "chrome-extension://*", "devtools://*"),
    *("view-source:*", "filesystem:*", "ftp://*"),
)
_POLICIES = {
    "URLBlocklist": list(_CLOSED),
    "DownloadRestrictions": 3,
    "DeveloperToolsAvailability": 0,
    "PrintingEnabled": False,
    "PasswordManagerEnabled": False,
    "TranslateEnabled": False,
    "BrowserSignin": 0,
    "DefaultNotificationsSetting": 2,
    "DefaultGeolocationSetting": 2,
}
"""DownloadRestrictions 3 forbids all downloads. Playwright needs DevTools."""
_LOCAL = (
    *(
        "localhost",
        "*.localhost",
        "localhost.",
        "*.localhost.",
        "127.*",
        "0.*",
        "10.*",
        "169.254.*",
        "192.168.*",
    ),
    *(f"172.{second}.*" for second in range(16, 32)),
    *(f"100.{second}.*" for second in range(64, 128)),
    *(
        f"*.{zone}{dot}"
        for zone in ("local", "localdomain", "internal", "lan", "home.arpa", "svc")
        for dot in ("", ".")
    ),
    "*:*",
)
"""The last pattern covers all IPv6 addresses, which have no brackets here; some of them are longer forms of
IPv4 addresses."""
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    f"--user-data-dir={HOME}/profile",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-service-autorun",
    "--no-pings",
    "--mute-audio",
    "--lang=en-US",
    "--password-store=basic",
    "--force-color-profile=srgb",
    "--disable-smooth-scrolling",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-hang-monitor",
    "--disable-search-engine-choice-screen",
    "--metrics-recording-only",
    "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,DialMediaRouteProvider,"
    "InterestFeedContentSuggestions,CertificateTransparencyComponentUpdater,HttpsUpgrades",
)
_START = """\
mkdir -p {home} {policies} && printf %s {policy} > {policy_file} || exit 1
for each in /usr/lib/chromium/chromium chromium chromium-browser google-chrome; do
  program=$(command -v "$each") && break
done
[ -n "$program" ] || exit {missing}
own=$(cat /etc/hosts /etc/hostname 2> /dev/null | sed 's/#.*//' | tr -s '[:blank:]' '\\n' |
  grep -E '^[A-Za-z0-9._-]+$' | sort -u | sed 's/.*/,MAP & ~NOTFOUND,MAP &. ~NOTFOUND/' | tr -d '\\n')
"$program" {flags}"$own" about:blank > {home}/log 2>&1 < /dev/null &
until [ -s {home}/profile/DevToolsActivePort ]; do
  kill -0 $! 2> /dev/null || {{ tail -c 2000 {home}/log; exit 1; }}
  sleep 0.02
done
head -n 1 {home}/profile/DevToolsActivePort
"""


def start_command(settings: BrowserSettings, block_network: bool) -> str:
    """Returns the shell script that starts Chromium and prints its debugging port. The script extends the
    last flag, so that names in the sandbox's hosts file resolve to nothing."""
    flags = [
        *_FLAGS,
        f"--window-size={settings.width},{settings.height}",
        f"--host-resolver-rules={resolver_rules(block_network)}",
    ]
    return _START.format(
        home=HOME,
        policies=shlex.quote(_POLICY.rpartition("/")[0]),
        policy=shlex.quote(json.dumps(_POLICIES)),
        policy_file=_POLICY,
        flags=shlex.join(flags),
        missing=NOT_INSTALLED,
    )


def resolver_rules(block_network: bool) -> str:
    """Returns Chromium's resolver rules, for pages and tools: generated sites resolve to the tunnel. Without
    network nothing else resolves; with network, all but the sandbox itself (where the debugging port is) and
    local networks does. A public name with a local address is not covered."""
    closed = ("*",) if block_network else _LOCAL
    return ",".join([f"MAP {SITES} 127.0.0.1:{SITE_PORT}", *(f"MAP {each} ~NOTFOUND" for each in closed)])


async def launched(machine: Machine, settings: BrowserSettings, block_network: bool) -> int:
    """Starts Chromium and returns its debugging port on the sandbox's loopback. Raises
    InfrastructureError."""
    outcome = await machine.run(start_command(settings, block_network), timeout=START_SECONDS, cwd="/")
    if outcome.returncode == NOT_INSTALLED:
        raise InfrastructureError(
            AbortCause.HARNESS_MISSING,
            f"there is no Chromium in the sandbox's image: install it with `{INSTALL}`",
        )
    if outcome.returncode or not outcome.output.strip().isdigit():
        ended = "did not start in time" if outcome.timed_out else "ended at its start"
        raise InfrastructureError(
            AbortCause.SANDBOX_DIED, f"Chromium {ended}: {outcome.output[-1000:].strip()}"
        )
    return int(outcome.output)

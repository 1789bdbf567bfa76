"""The known forms of keys: prefixes of vendors, and the contexts that show other secrets.

Compared with the rules of gitleaks and detect-secrets; a form is here if it tells a key from a commit, a
digest, an identifier and Base64. A secret without a form of its own counts only in a context that names it,
and only if it looks generated.
"""

import re
from collections.abc import Iterator
from functools import cached_property

_BEGINS = "|".join(
    (
        r"(?<![A-Za-z0-9_])",
        r"(?<=\\[nrtbfv0e])",  # `\n`, as arguments of tools have it, which are JSON
        r"(?<=\\x[0-9A-Fa-f]{2})",
        r"(?<=\\u[0-9A-Fa-f]{4})",
        r"(?<=[%=][0-9A-Fa-f]{2})",  # of addresses and of mails
        r"(?<=[\[;0-9][mK])",  # the end of a terminal's colour
    )
)
"""Matches before a key: no word character, or a character that is spelled with letters."""


SHORTEST = 20
"""Characters that a key of a prefixed form has at least. None of them is white space."""


class Prefixed:
    """A form of keys that hold a fixed text of their vendor, mostly at the start: texts are searched for
    that."""

    def __init__(
        self, name: str, hint: str, rest: str, before: str = "", away: tuple[int, int] = (0, 0)
    ) -> None:
        """`before` and `rest` are patterns of what is before and after the hint, which is `away[0]` to
        `away[1]` characters from the key's start."""
        self.name, self.hint = name, hint
        self._before, self._rest, self._away = before, rest, away

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile(rf"(?:{_BEGINS}){self._loose.pattern}(?![A-Za-z0-9_])")

    @cached_property
    def _loose(self) -> re.Pattern[str]:
        return re.compile(f"{self._before}{self._end.pattern}")

    @cached_property
    def _end(self) -> re.Pattern[str]:
        return re.compile(f"{re.escape(self.hint)}{self._rest}")

    def found(self, text: str, *, whole: bool) -> Iterator[re.Match[str]]:
        """Yields the keys in a text; with `whole` only those that are not part of a longer word."""
        pattern = self._whole if whole else self._loose
        at, reached = text.find(self.hint), 0
        while at >= 0:
            if self._end.match(text, at):
                nearest, farthest = self._away
                for start in range(max(at - farthest, reached), at - nearest + 1):
                    if (match := pattern.match(text, start)) is not None:
                        reached = match.end()
                        yield match
                        break
            at = text.find(self.hint, max(at + 1, reached))

    def begins(self, before: str, key: str) -> bool:
        """Whether the key is a word of its own after `before`."""
        return self._whole.match(before + key, len(before)) is not None


class Framed:
    """A form of keys that their context shows."""

    def __init__(self, name: str, hints: tuple[str, ...], form: str) -> None:
        """Every such text holds one of `hints`, in small letters; the last group of `form` is the key."""
        self.name, self.hints, self._form = name, hints, form

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self._form)


_HEX, _ALNUM, _WORD = "[0-9a-f]", "[A-Za-z0-9]", "[A-Za-z0-9_-]"

PREFIXED = (
    *(
        Prefixed("aws-access-key", begin, r"(?![A-Z2-7]{9}EXAMPLE)[A-Z2-7]{16}")
        for begin in ("AKIA", "ASIA", "ABIA", "ACCA")
    ),
    Prefixed("aws-bedrock-key", "ABSK", r"[A-Za-z0-9+/]{109,269}={0,2}"),
    Prefixed("alibaba-key", "LTAI", r"[A-Za-z0-9]{20}"),
    Prefixed("tencent-key", "AKID", r"[A-Za-z0-9]{32}"),
    Prefixed("yandex-key", "AQVN", r"[A-Za-z0-9_-]{35,38}"),
    *(
        Prefixed("github-token", begin, _ALNUM + "{36,255}")
        for begin in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")
    ),
    Prefixed("github-token", "github_pat_", r"[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    *(
        Prefixed("gitlab-token", begin, _WORD + "{20,300}")
        for begin in ("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glimt-", "glagent-", "gloas-")
    ),
    Prefixed("gitlab-token", "GR1348941", _WORD + "{20}"),
    Prefixed("anthropic-key", "sk-ant-", r"[a-z]{3,8}\d\d-[A-Za-z0-9_-]{80,}"),
    Prefixed("openrouter-key", "sk-or-v1-", _HEX + "{64}"),
    Prefixed("langfuse-key", "sk-lf-", r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    *(
        Prefixed("openai-key", begin, _WORD + "{40,}")
        for begin in ("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-")
    ),
    Prefixed("openai-key", "T3BlbkFJ", r"[A-Za-z0-9]{20}", r"sk-[A-Za-z0-9]{20}", (23, 23)),
    Prefixed("model-key", "sk-", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32,64}"),  # DeepSeek, Moonshot, Qwen, ...
    Prefixed("google-key", "AIza", r"[0-9A-Za-z_-]{35}"),
    Prefixed("google-key", "AQ.", r"[0-9A-Za-z_-]{40,}"),
    Prefixed("google-secret", "GOCSPX-", r"[A-Za-z0-9_-]{28}"),
    Prefixed("google-token", "ya29.", r"[A-Za-z0-9_-]{40,}"),
    Prefixed("google-token", "1//0", r"[A-Za-z0-9_-]{40,}"),
    Prefixed("hugging-face-token", "hf_", r"[A-Za-z0-9]{34}"),
    Prefixed("hugging-face-token", "api_org_", r"[A-Za-z]{34}"),
    Prefixed("groq-key", "gsk_", _ALNUM + "{52}"),
    Prefixed("xai-key", "xai-", _ALNUM + "{80}"),
    Prefixed("replicate-token", "r8_", _ALNUM + "{37}"),
    Prefixed("perplexity-key", "pplx-", _ALNUM + "{48,56}"),
    Prefixed("nvidia-key", "nvapi-", _WORD + "{60,}"),
    Prefixed("cerebras-key", "csk-", r"[a-z0-9]{48}"),
    Prefixed("fireworks-key", "fw_", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{22,24}"),
    Prefixed("together-key", "tgp_v1_", _WORD + "{43}"),
    Prefixed("pinecone-key", "pcsk_", r"[A-Za-z0-9_]{60,}"),
    Prefixed("jina-key", "jina_", _ALNUM + "{60}"),
    Prefixed("elevenlabs-key", "sk_", _HEX + "{48}"),
    Prefixed("tavily-key", "tvly-", r"(?=[A-Za-z-]*[0-9])[A-Za-z0-9-]{32,}"),
    Prefixed("firecrawl-key", "fc-", _HEX + "{32}"),
    Prefixed("e2b-key", "e2b_", _HEX + "{40}"),
    Prefixed("daytona-key", "dtn_", _HEX + "{64}"),
    *(Prefixed("langsmith-key", begin, _HEX + "{32}_" + _HEX + "{10}") for begin in ("lsv2_pt_", "lsv2_sk_")),
    *(
        Prefixed("slack-token", f"xox{kind}-", r"(?:\d+-)?[A-Za-z0-9-]{20,}")
        for kind in ("a", "b", "c", "d", "e", "o", "p", "r", "s")
    ),
    Prefixed("slack-token", "xoxe.xox", r"[bp]-\d-[A-Za-z0-9]{100,}"),
    Prefixed("slack-token", "xapp-", r"\d-[A-Z0-9]+-\d+-[a-f0-9]{32,}"),
    Prefixed(
        "slack-webhook", "https://hooks.slack.com/", r"(?:services/T\w+/B\w+|workflows/T\w+/A\w+/\d+)/\w{20,}"
    ),
    Prefixed("discord-webhook", "https://discord.com/api/webhooks/", r"\d{17,20}/[A-Za-z0-9_-]{60,}"),
    Prefixed(
        "discord-token", ".", r"[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}", r"[MNO][A-Za-z0-9]{23,27}", (24, 28)
    ),
    Prefixed("telegram-token", ":AA", r"[A-Za-z0-9_-]{33}", r"[0-9]{8,10}", (8, 10)),
    *(
        Prefixed("stripe-key", begin, _ALNUM + "{24,}")
        for begin in ("sk_live_", "rk_live_", "sk_test_", "rk_test_")
    ),
    Prefixed("stripe-key", "whsec_", r"[A-Za-z0-9]{32,}"),
    Prefixed("square-token", "sq0csp-", _WORD + "{43}"),
    Prefixed("square-token", "sq0atp-", _WORD + "{22}"),
    *(
        Prefixed("shopify-token", begin, r"[a-fA-F0-9]{32}")
        for begin in ("shpat_", "shpca_", "shppa_", "shpss_")
    ),
    Prefixed("braintree-token", "access_token$production$", r"[a-z0-9]{16}\$[a-f0-9]{32}"),
    Prefixed("facebook-token", "EAA", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{90,}"),
    Prefixed("twilio-key", "SK", _HEX + "{32}"),
    Prefixed("mailgun-key", "key-", _HEX + "{32}"),
    Prefixed("mailchimp-key", "-us", r"[0-9]{1,2}", _HEX + "{32}", (32, 32)),
    Prefixed("brevo-key", "xkeysib-", r"[a-f0-9]{64}-[A-Za-z0-9]{16}"),
    Prefixed("sendgrid-key", "SG.", r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    Prefixed("resend-key", "re_", r"[A-Za-z0-9]{8}_[A-Za-z0-9]{24}"),
    Prefixed("npm-token", "npm_", _ALNUM + "{36}"),
    Prefixed("pypi-token", "pypi-AgE", _WORD + "{50,}"),
    Prefixed("rubygems-key", "rubygems_", _HEX + "{48}"),
    Prefixed("nuget-key", "oy2", r"[a-z0-9]{43}"),
    Prefixed("crates-token", "cio", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32}"),
    *(Prefixed("docker-token", begin, r"[A-Za-z0-9_-]{27,32}") for begin in ("dckr_pat_", "dckr_oat_")),
    *(Prefixed("digitalocean-token", begin, _HEX + "{64}") for begin in ("dop_v1_", "doo_v1_", "dor_v1_")),
    Prefixed("heroku-key", "HRKU-", r"[A-Za-z0-9_-]{36,60}"),
    *(Prefixed("fly-token", begin, r"[A-Za-z0-9+/=_,-]{43,}") for begin in ("fo1_", "fm1_", "fm2_")),
    Prefixed("netlify-token", "nfp_", _ALNUM + "{36}"),
    Prefixed("cloudflare-key", "v1.0-", r"[a-f0-9]{24}-[a-f0-9]{146}"),
    Prefixed("supabase-key", "sbp_", _HEX + "{40}"),
    Prefixed("supabase-key", "sb_secret_", _WORD + "{31,}"),
    *(
        Prefixed("planetscale-key", begin, r"[A-Za-z0-9_.-]{32,64}")
        for begin in ("pscale_pw_", "pscale_tkn_", "pscale_oauth_")
    ),
    Prefixed("databricks-token", "dapi", r"[0-9a-f]{32}(?:-\d)?"),
    *(
        Prefixed("doppler-token", f"dp.{kind}.", r"(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}")
        for kind in ("pt", "st", "ct", "sa", "scim", "audit")
    ),
    *(Prefixed("vault-token", begin, _WORD + "{24,}") for begin in ("hvs.", "hvb.", "hvr.")),
    Prefixed("terraform-token", ".atlasv1.", r"[A-Za-z0-9_=-]{60,70}", _ALNUM + "{14}", (14, 14)),
    Prefixed("onepassword-token", "ops_eyJ", r"[A-Za-z0-9+/_-]{200,}={0,3}"),
    Prefixed("age-key", "AGE-SECRET-KEY-1", r"[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}"),
    Prefixed("pulumi-token", "pul-", _HEX + "{40}"),
    Prefixed("grafana-token", "glsa_", r"[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}"),
    Prefixed("grafana-token", "glc_eyJ", r"[A-Za-z0-9+/]{32,400}={0,3}"),
    Prefixed("sentry-token", "sntrys_eyJ", r"[A-Za-z0-9+/=_]{60,}"),
    Prefixed("sentry-token", "sntryu_", _HEX + "{64}"),
    Prefixed("newrelic-key", "NRAK-", r"[A-Z0-9]{27}"),
    Prefixed("dynatrace-token", "dt0c01.", r"[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    Prefixed("posthog-key", "phx_", r"[A-Za-z0-9_]{43}"),
    Prefixed("linear-key", "lin_api_", _ALNUM + "{40}"),
    Prefixed("notion-token", "ntn_", r"[0-9]{11}[A-Za-z0-9]{35}"),
    Prefixed("notion-token", "secret_", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{43}"),
    Prefixed("figma-token", "figd_", _WORD + "{38,43}"),
    Prefixed("airtable-token", "pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    Prefixed("atlassian-token", "ATATT3", r"[A-Za-z0-9_=-]{180,}"),
    Prefixed("bitbucket-token", "ATBB", _ALNUM + "{32}"),
    Prefixed("postman-key", "PMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}"),
    Prefixed("buildkite-token", "bkua_", _HEX + "{40}"),
    Prefixed("circleci-token", "CCIPAT_", r"[A-Za-z0-9]{22}_[a-f0-9]{40}"),
    *(Prefixed("sonar-token", begin, _HEX + "{40}") for begin in ("sqp_", "squ_", "sqa_")),
    Prefixed("artifactory-key", "AKCp", _ALNUM + "{69}"),
    Prefixed("clojars-token", "CLOJARS_", r"[a-z0-9]{60}"),
    *(Prefixed("nats-seed", begin, r"[A-Z2-7]{56}") for begin in ("SU", "SA", "SO")),
    Prefixed("json-web-token", "eyJ", r"[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}"),
    Prefixed(
        "json-web-token",
        "eyJ",
        r"[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]{10,}){2}\.[A-Za-z0-9_-]{16,}",
    ),
    Prefixed("azure-secret", "Q~", r"[A-Za-z0-9_~.-]{31,34}", r"[A-Za-z0-9_~.-]{3}[0-9]", (4, 4)),
)
"""Specific forms stand before general ones."""

_MADE = r"(?=[A-Za-z0-9+/_=.~!#%^&*-]*[0-9])(?=[A-Za-z0-9+/_=.~!#%^&*-]*[A-Za-z])"
"""Matches before a secret without a form of its own: it has letters and digits."""
_PASSWORD = (
    r"(?!\[masked |[$<{\[%*]|(?i:your|my|the|test|change|some|example)|(?i:pass(?:word|wd|phrase)?|pwd|pw|"
    r"secret|token|key|x+|\.+|admin|root|guest|postgres|mysql|redis)[0-9]{0,4}(?:[@;\s\"']|$))"
)
"""Matches before a password in an address: no variable, no name for one and no default."""

FRAMED = (
    Framed(
        "aws-secret-key",
        ("secretaccesskey", "secret_access_key", "secret_accesskey", "secretaccess_key"),
        r"(?i:secret_?access_?key)[\"']?\s*[=:]\s*\\?[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
    ),
    Framed(
        "aws-session-token",
        ("sessiontoken", "session_token", "security-token", "securitytoken"),
        r"(?i:session_?token|security[-_]?token)(?:\\?[\"'])?(?:\s*[=:>]\s*)\\?[\"']?([A-Za-z0-9/+=%]{100,})",
    ),
    Framed("azure-key", ("accountkey=",), r"AccountKey=([A-Za-z0-9+/]{86}==)"),
    Framed("azure-key", ("sharedaccesskey=",), r"SharedAccessKey=([A-Za-z0-9+/]{43}=)"),
    Framed("azure-signature", ("sig=",), r"[?&;]sig=([A-Za-z0-9%+/]{43,60}(?:%3[dD]|=))"),
    Framed("signature", ("x-amz-signature=",), r"X-Amz-Signature=([0-9a-f]{64})"),
    Framed("signature", ("x-goog-signature=",), r"X-Goog-Signature=([0-9a-f]{256,512})"),
    Framed(
        "private-key",
        ("private key",),
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"
        r"((?:\s|\\n|\\r)(?:[A-Za-z0-9+/=\s:,.()@-]|\\[nr]){64,}?)"
        r"(?=-----END (?:[A-Z]+ )*PRIVATE KEY|\Z|[^A-Za-z0-9+/=\s:,.()@\\-])",
    ),
    Framed(
        "password",
        ("://",),
        rf"://(?P<user>[^\s:/@\"'<>`\\]{{0,100}}):(?!(?P=user)@){_PASSWORD}"
        r"([^\s/@\"'<>`\\]{5,200})@[A-Za-z0-9_.\[-]",
    ),
    Framed(
        "password",
        ("password=", "pwd="),
        rf"(?i:[;\"](?:password|pwd)=){_PASSWORD}{_MADE}([^;\s\"'<>]{{8,100}})(?=[;\"'])",
    ),
    Framed(
        "password",
        ("login",),
        rf"(?:machine\s+\S+|default)\s+login\s+\S+\s+password\s+{_PASSWORD}(\S{{5,200}})",
    ),
    Framed(
        "password",
        ("curl",),
        rf"curl\b[^\n|;]*?\s(?:-u|--user)[\s=]*[\"']?[^\s:\"']+:{_PASSWORD}([^\s\"']{{5,100}})",
    ),
    Framed(
        "authorization",
        ("authorization",),
        rf"(?i:authorization)[\"']?\s*[:=,]\s*b?[\"']?(?i:basic|bearer|token|apikey)\s+{_MADE}"
        r"([A-Za-z0-9+/_.~-]{16,2000}={0,2})(?![A-Za-z0-9_.(\[])",
    ),
    Framed(
        "authorization",
        ("api-key", "api_key", "apikey", "auth-token", "private-token", "access-token"),
        r"(?i:x-(?:api-key|auth-token|access-token)|private-token|x-goog-api-key|api-key)[\"']?\s*[:,]\s*"
        rf"b?[\"']?{_MADE}"
        r"([A-Za-z0-9+/_.~-]{20,500}={0,2})(?![A-Za-z0-9_.(\[])",
    ),
    Framed(
        "authorization",
        ('"auth"',),
        rf"\"auth\"\s*:\s*\"{_MADE}([A-Za-z0-9+/]{{20,500}}={{0,2}})\"",
    ),
    Framed(
        "authorization",
        ("_authtoken", "_auth"),
        rf":_auth(?:Token)?\s*=\s*[\"']?{_MADE}([^\s\"'$]{{16,500}})",
    ),
    Framed(
        "named-secret",
        ("key=", "token=", "secret=", "passwd=", "password="),
        r"(?:API_?KEY|SECRET(?:_KEY)?|ACCESS_KEY|AUTH_KEY|TOKEN|PASSW(?:OR)?D)"
        rf"=\\?[\"']?{_MADE}([A-Za-z0-9+/_~-]{{24,200}}={{0,2}})(?![A-Za-z0-9_.(\[$])",
    ),
)

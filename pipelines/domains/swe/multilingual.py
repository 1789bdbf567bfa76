"""How each repository of SWE-bench Multilingual runs its tests: a table, and the command for a test patch.

A row that has an `eval_script`, as SWE-bench 5 publishes them, is run by that. For rows that have none the
command follows from the files of the test patch, and runs more tests of these files than are named. Pure.
"""

import posixpath
import re
import shlex
from collections.abc import Callable, Sequence

import msgspec

from orchard.pipelines.domains.swe.benchmark_repositories import all_of

Targets = Callable[[Sequence[str]], list[str]]
"""Maps the paths of a test patch to a command's targets; a duplicate is requested once."""


class RepositorySuite(msgspec.Struct, frozen=True, kw_only=True):
    """The way that one repository runs its tests."""

    language: str
    parser: str
    command: str
    """Shell line; `{}` in it stands for the targets."""
    targets: Targets | None = None
    """None for a command that always runs all, or takes the names of tests (`by_test`)."""
    otherwise: str = ""
    """The target for paths without one, fixtures alone. Empty: nothing is run."""
    each: bool = False
    """Whether the command takes one target."""
    by_test: bool = False
    """The targets are the tests that the row names: Maven does not say which of several passed."""
    build: tuple[str, ...] = ()
    """Shell lines that run after the tests are brought, before them."""

    def test_command(self, paths: Sequence[str], tests: Sequence[str]) -> str | None:
        """The shell lines for a patch of the files `paths`, and for the tests that the row names; None where
        the patch has nothing that could be run."""
        if self.by_test:
            module = next(iter(_modules(paths)), ".")
            runs = [self.command.format(shlex.quote(module), shlex.quote(test)) for test in tests]
            return "\n".join(["set -x", *runs])
        if self.targets is None:
            return self.command
        targets = [
            shlex.quote(target) for target in dict.fromkeys(self.targets(paths) or [self.otherwise]) if target
        ]
        if not targets:
            return None
        if not self.each:
            return self.command.format(" ".join(targets))
        return all_of([self.command.format(target) for target in targets])


def suite(repo: str) -> RepositorySuite | None:
    """The entry of `owner/name`, or None for a repository that Multilingual does not have."""
    return SUITES.get(repo.lower())


_SCRIPT = re.compile(
    r"(?:^|\n)EOF_\d+\n(?P<build>.*?)\n?: '>>>>> Start Test Output'\n(?P<test>.*?)\n: '>>>>>", re.DOTALL
)


def commands_of_script(script: str) -> tuple[tuple[str, ...], str] | None:
    """(build lines, test command) of an `eval_script`: what stands between its test patch and its marks.

    The command echoes what it runs, which some parsers read. None for a script of another form.
    """
    match = _SCRIPT.search(script)
    if match is None or not match["test"].strip():
        return None
    build = (match["build"],) if match["build"].strip() else ()
    return build, f"set -xo pipefail\n{match['test']}"


# --- targets -------------------------------------------------------------------------------------


def _matching(form: str, made: str = r"\g<0>") -> Targets:
    """Targets made by `made` of each path that matches a form."""
    pattern = re.compile(form)
    return lambda paths: [match.expand(made) for path in paths if (match := pattern.fullmatch(path))]


def _packages(paths: Sequence[str]) -> list[str]:
    """Go's packages: directories that hold a test; where there are data alone, all below their top."""
    found = [posixpath.dirname(path) for path in paths if path.endswith(".go")]
    if found:
        return [f"./{directory}" if directory else "." for directory in found]
    return [f"./{path.partition('/')[0]}/..." for path in paths if "/" in path]


def _crates(paths: Sequence[str]) -> list[str]:
    """Manifests of the Rust crates that hold the paths."""
    return [
        posixpath.join(match[1] or "", "Cargo.toml")
        for path in paths
        if (match := re.fullmatch(r"(?:(.+?)/)?(?:src|tests|benches)/.*", path))
    ]


def _modules(paths: Sequence[str]) -> list[str]:
    """Maven's modules that hold the paths."""
    return [match[1] for path in paths if (match := re.fullmatch(r"(.+?)/src/.*", path))]


def _java_classes(paths: Sequence[str]) -> list[str]:
    classes = _matching(r"(?:.*/)?src/test/(?:java/)?(.+)\.java", r"\1")(paths)
    return [name.replace("/", ".") for name in classes]


def _jest_paths(paths: Sequence[str]) -> list[str]:
    """Files of tests; of fixtures and snapshots what stands above them."""
    tests = _matching(r".*\.(?:test|spec)\.[cm]?[jt]sx?|.*/(?:test|__tests__)/[^/]*\.[cm]?[jt]sx?")(paths)
    above = _matching(r"(.*/(?:test|__tests__))/(?:fixtures|__fixtures__|__snapshots__)/.*", r"\1")(paths)
    return [*tests, *above]


# --- the table -----------------------------------------------------------------------------------

_RSPEC = "bundle exec rspec {} --no-color --format json | sed -n '/^{{/,$p' | jq -r "
_SEVERAL = (
    '\'.examples | group_by(.description)[] | (.[0].description) + " - " + '
    '(if any(.[]; .status == "failed") then "failed" else .[0].status end)\''
)
_FASTLANE = '\'.examples[] | .description + " - " + .id + " - " + .status\''
_JEST_JSON = (
    '\'.testResults[].assertionResults[] | "[" + (.status | ascii_upcase) + "] " + '
    '([.ancestorTitles[], .title] | join(" > "))\''
)
"""Lines that `jest-or-json` reads beside Jest's own: some rows name tests by one, some by the other."""
_FPM = "'.examples[] | .description + \" - \" + .status'"

_REDIS = RepositorySuite(
    language="c",
    parser="redis",
    build=("make distclean", "make"),
    command="TERM=dumb ./runtest --durable --single {}",
    targets=_matching(r"tests/((?:unit|integration)/.+)\.tcl", r"\1"),
    each=True,
)
_GO = RepositorySuite(language="go", parser="go", command="go test -v {}", targets=_packages)
_PHPUNIT = RepositorySuite(
    language="php",
    parser="testdox",
    command="./vendor/bin/phpunit --testdox --colors=never {}",
    targets=_matching(r".*Test\.php"),
    otherwise="tests",
    each=True,
)
_RUBY_UNIT = RepositorySuite(
    language="ruby",
    parser="test-unit",
    command="bundle exec ruby {} -v",
    targets=_matching(r"test/.*test_.*\.rb"),
    each=True,
)
_GRADLE = RepositorySuite(
    language="java", parser="gradle", command="./gradlew test --tests {}", targets=_java_classes, each=True
)
_MAVEN = RepositorySuite(
    language="java", parser="maven", command="mvnd test -B -T 1C -pl {} -Dtest={}", by_test=True
)
_CARGO = RepositorySuite(
    language="rust",
    parser="cargo",
    command="RUSTFLAGS=-Awarnings cargo test --no-fail-fast --manifest-path {}",
    targets=_crates,
    otherwise="Cargo.toml",
    each=True,
)
_JEST = RepositorySuite(
    language="javascript", parser="jest", command="yarn jest {} --verbose", targets=_jest_paths
)
_SPECS = _matching(r".*_spec\.rb")


def _rspec(transform: str, variables: str = "") -> RepositorySuite:
    return RepositorySuite(
        language="ruby",
        parser="rspec",
        command=variables + _RSPEC + transform,
        targets=_SPECS,
        otherwise="spec",
    )


def _with(suite: RepositorySuite, **changes: object) -> RepositorySuite:
    return msgspec.structs.replace(suite, **changes)


_FMT_BUILD = "cmake -B build -S . && cmake --build build --parallel $(nproc) --target {0}"
_TOKIO = 'RUSTFLAGS="--cfg tokio_unstable -Awarnings" cargo test --features full --no-fail-fast --test {}'
_MICROPYTHON = (
    "(cd tests && MICROPY_CPYTHON3=python3 "
    "MICROPY_MICROPYTHON=../ports/unix/build-standard/micropython ./run-tests.py -i {})"
)

SUITES: dict[str, RepositorySuite] = {
    # C and C++
    "redis/redis": _REDIS,
    "valkey-io/valkey": _REDIS,
    "jqlang/jq": RepositorySuite(
        language="c",
        parser="automake",
        build=(
            "git submodule update --init",
            "autoreconf -fi",
            "./configure --with-oniguruma=builtin",
            "make clean",
            "touch src/parser.y src/lexer.l",
            "make -j$(nproc)",
        ),
        command="make check",
    ),
    "micropython/micropython": RepositorySuite(
        language="c",
        parser="micropython",
        build=("source ./tools/ci.sh", "ci_unix_build_helper VARIANT=standard"),
        command=_MICROPYTHON,
        targets=_matching(r"tests/(.+?)\.py(?:\.exp)?", r"\1"),
        each=True,
    ),
    "fmtlib/fmt": RepositorySuite(
        language="c++",
        parser="googletest",
        command=f"{_FMT_BUILD} && ctest --test-dir build -V -R {{0}}",
        targets=_matching(r"test/(.+-test)\.cc", r"\1"),
        each=True,
    ),
    "nlohmann/json": RepositorySuite(
        language="c++",
        parser="doctest",
        command="mkdir -p build && (cd build && cmake .. && make {0}) && ./build/tests/{0} -s -r=xml",
        targets=_matching(r"tests/src/unit-(.+)\.cpp", r"test-\1_cpp11"),
        each=True,
    ),
    # Go
    "caddyserver/caddy": _GO,
    "gin-gonic/gin": _GO,
    "gohugoio/hugo": _GO,
    "hashicorp/terraform": _GO,
    "prometheus/prometheus": _GO,
    # Java
    "apache/druid": _MAVEN,
    "google/gson": _MAVEN,
    "javaparser/javaparser": _with(
        _MAVEN,
        command="./mvnw install -B -am -DskipTests -pl {0} > /dev/null; ./mvnw test -B -pl {0} -Dtest={1}",
    ),
    "projectlombok/lombok": RepositorySuite(
        language="java", parser="ant", build=("ant test.compile",), command="ant test.instance"
    ),
    "apache/lucene": _GRADLE,
    "reactivex/rxjava": _GRADLE,
    # JavaScript and TypeScript
    "axios/axios": RepositorySuite(
        language="javascript",
        parser="tap",
        command="npx mocha -R tap {}",
        targets=_matching(r"test/unit/.*\.js"),
    ),
    "babel/babel": _with(_JEST, build=("make build",)),
    "facebook/docusaurus": _with(_JEST, language="typescript", command="yarn test {} --verbose"),
    "immutable-js/immutable-js": _with(
        _JEST,
        language="typescript",
        parser="jest-or-json",
        build=("npm run build",),
        command="npx jest {0} --verbose; npx jest {0} --silent --json | jq -r " + _JEST_JSON,
        targets=_matching(r"__tests__/.*\.[jt]sx?"),
    ),
    "mrdoob/three.js": RepositorySuite(
        language="javascript",
        parser="tap",
        command="npx qunit {}",
        targets=_matching(r"test/unit/.*\.tests\.js"),
    ),
    "preactjs/preact": RepositorySuite(
        language="javascript",
        parser="karma",
        command="COVERAGE=false BABEL_NO_MODULES=true npx karma start karma.conf.js --single-run --grep={}",
        targets=_matching(r".*\.test\.jsx?"),
        each=True,
    ),
    "vuejs/core": RepositorySuite(
        language="typescript",
        parser="vitest",
        command="pnpm run test {} --no-watch --reporter=verbose",
        targets=_matching(r".*\.spec\.tsx?"),
    ),
    # PHP
    "briannesbitt/carbon": _PHPUNIT,
    "laravel/framework": _PHPUNIT,
    "php-cs-fixer/php-cs-fixer": _PHPUNIT,
    "phpoffice/phpspreadsheet": _PHPUNIT,
    # Ruby
    "faker-ruby/faker": _RUBY_UNIT,
    "fluent/fluentd": _RUBY_UNIT,
    "fastlane/fastlane": _rspec(_FASTLANE, "FASTLANE_SKIP_UPDATE_CHECK=1 "),
    "jordansissel/fpm": _rspec(_FPM),
    "rubocop/rubocop": _rspec(_SEVERAL),
    "jekyll/jekyll": RepositorySuite(
        language="ruby",
        parser="minitest-or-cucumber",
        command="case {0} in *.feature) bundle exec cucumber --publish-quiet --format progress "
        "--no-color {0};; *) bundle exec ruby -I test {0} -v;; esac",
        targets=_matching(r"test/test_.*\.rb|features/.*\.feature"),
        each=True,
    ),
    # Rust
    "astral-sh/ruff": _with(_CARGO, command="cargo test --no-fail-fast --lib --manifest-path {}"),
    "burntsushi/ripgrep": _CARGO,
    "nushell/nushell": _CARGO,
    "sharkdp/bat": _CARGO,
    "tokio-rs/axum": _CARGO,
    "tokio-rs/tokio": _with(_CARGO, command=_TOKIO, targets=_matching(r".*?/?tests/(\w+)\.rs", r"\1")),
    "uutils/coreutils": _with(
        _CARGO,
        command="cargo test --no-fail-fast -- {}",
        targets=_matching(r"tests/by-util/(test_\w+)\.rs", r"\1::"),
        otherwise="test_",
        each=False,
    ),
}

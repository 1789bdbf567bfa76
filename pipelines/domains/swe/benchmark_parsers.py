"""Maps the parsers of test logs that datasets of the SWE-bench family name to Orchard's."""

from orchard.workers.domains.swe.logs.parsers import PARSERS

_NAMES = {
    # SWE-bench
    **dict.fromkeys(
        ("astropy", "astroid", "flask", "marshmallow", "pvlib", "pytest_v2", "pyvista"), "pytest"
    ),
    **dict.fromkeys(("scikit", "seaborn", "sqlfluff", "xarray"), "pytest"),
    **dict.fromkeys(("pytest_options", "requests", "pylint", "pydicom"), "pytest-options"),
    "matplotlib": "pytest-matplotlib",
    "sphinx": "pytest-last",
    "django": "unittest",
    # SWE-bench Multilingual
    "jq": "automake",
    "micropython_test": "micropython",
    "gotest": "go",
    "gradle_custom": "gradle",
    "phpunit": "testdox",
    "jekyll": "minitest-or-cucumber",
    "ruby_unit": "test-unit",
    "rspec_transformed_json": "rspec",
    "jest_json": "jest-json",
    "immutable_js": "jest-or-json",
    # SWE-bench Multimodal
    **dict.fromkeys(("carbon", "react_pdf", "prettier", "scratch_gui"), "jest-files"),
    "emotion": "jest-files-timed",
    "grommet": "jest-files-passing-first",
    "calypso": "jest-tree",
    "highlightjs": "mocha-spec",
    "lighthouse_mocha": "mocha-tree",
    "prismjs": "mocha-json",
    "cypress": "cypress-json",
    "next": "karma-or-cypress",
    "next_v1": "karma-tree",
    "next_v2": "karma-or-cypress",
    "plotly_js": "jasmine-tree",
    "quarto_cli": "deno",
    "eslint": "eslint-failures",
    "bpmn_js": "karma-failures",
    "chart_js": "chart-failures",
    "openlayers": "openlayers-failures",
    "marked": "jasmine-failures",
    "p5js": "p5-failures",
    # SWE-rebench V2
    "js": "mocha-marks",
    "js_2": "mocha-numbered",
    "js_3": "tap-nested",
    "js_4": "marks",
    "cpp": "plain-pytest",
    "cpp_v2": "test-words",
    "cpp_v3": "said",
    "cpp_v4": "ctest",
    "dart": "dart-events",
    "dart_v2": "dart-packages",
    "dart_v3": "dart-lines",
    "csharp": "dotnet",
    "elixir": "exunit",
    **dict.fromkeys(("lue_nvim", "lua_nvim"), "nvim"),
    "swift": "xctest",
    "pytest_nebo": "pytest-workers",
    "ruby_v1": "minitest-suites",
    "ruby_v2": "minitest-seconds",
    "php_v1": "pest",
    "haskell": "tasty-or-hspec",
    "haskell_v2": "hspec-tree",
    "npx": "mocha-npx",
    "ocaml": "alcotest",
    "ocaml_v2": "dune",
    "ocaml_v3": "marked",
    **dict.fromkeys(("ocaml_v4", "ocaml_v5"), "status-name"),
    "r": "testthat",
    "r_v2": "r-cmd-check",
    "scala": "scalatest",
    "scala_v2": "scala-marks",
    "scala_v3": "scalatest-suites",
    "java_mvn_v2": "maven-modules",
    **dict.fromkeys(("logs_r_junit", "r_junit", "combined_test_reports"), "junit-owner"),
    **dict.fromkeys(("junit", "sbt"), "junit-class-name"),
    "gradlew_v1": "junit-name-class",
    **dict.fromkeys(("java_mvn", "kotlin_junit", "logs_kotlin_junit"), "surefire"),
}
"""Names without `parse_log_` or `parse_`, where Orchard's differs."""


def parser_named(name: str) -> str | None:
    """Orchard's name of the parser that a row names; None where there is none."""
    if name in PARSERS:
        return name
    plain = name.removeprefix("parse_").removeprefix("log_")
    known = _NAMES.get(plain, plain)
    return known if known in PARSERS else None

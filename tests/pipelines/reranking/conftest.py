"""The store that is being written, of the tests of values."""

from tests.pipelines.values.conftest import pipeline as pipeline

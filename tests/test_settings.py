"""Settings come from the environment and the user's file; what does not parse never stops a run."""

import logging

import pytest
from pydantic import ValidationError

from trawl.errors import UsageError
from trawl.settings import Settings, variable_of


def test_environment_variables_carry_the_prefix_and_the_field_name():
    settings = Settings.from_env({"TRAWL_EMBED_URL": "http://box:9000/v1/", "TRAWL_CHUNK_BUDGET": "40", "OTHER": "1"})
    assert settings.embed_url == "http://box:9000/v1"
    assert settings.chunk_budget == 40


def test_a_value_that_does_not_parse_falls_back_to_the_default_and_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        settings = Settings.from_env({"TRAWL_TIMEOUT": "soon", "TRAWL_CHUNK_BUDGET": "7"})
    assert settings.timeout == Settings().timeout
    assert settings.chunk_budget == 7
    assert "TRAWL_TIMEOUT" in caplog.text
    assert "soon" not in caplog.text, "the value may be a secret"


def test_a_path_in_the_home_of_nobody_known_falls_back_to_the_default(caplog):
    settings = Settings.from_env({"TRAWL_CACHE_DIR": "~nobody-of-that-name/cache"})
    assert settings.cache_dir == Settings().cache_dir
    assert "TRAWL_CACHE_DIR" in caplog.text


def test_an_empty_value_is_no_value():
    assert Settings.from_env({"TRAWL_EMBED_URL": "", "TRAWL_TIMEOUT": "  "}) == Settings()


def test_the_environment_wins_over_the_named_file(tmp_path):
    file = tmp_path / "env"
    file.write_text("TRAWL_TIMEOUT=5\nTRAWL_CHUNK_BUDGET=9\n# a comment\n")
    settings = Settings.from_env({"TRAWL_ENV_FILE": str(file), "TRAWL_TIMEOUT": "6"})
    assert (settings.timeout, settings.chunk_budget) == (6.0, 9)


def test_a_dollar_in_the_file_is_itself(tmp_path):
    file = tmp_path / "env"
    file.write_text("TRAWL_EMBED_API_KEY='pa$HOME${X}'\n")
    key = Settings.from_env({}, config_file=file).embed_api_key
    assert key is not None
    assert key.get_secret_value() == "pa$HOME${X}"


def test_a_file_in_the_working_directory_is_never_read(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("TRAWL_TIMEOUT=1\n")
    (tmp_path / "env").write_text("TRAWL_TIMEOUT=1\n")
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({}).timeout == Settings().timeout


def test_a_named_file_that_is_missing_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        Settings.from_env({}, config_file=tmp_path / "nowhere")


def test_secrets_do_not_show():
    settings = Settings.from_env({"TRAWL_EMBED_API_KEY": "sesame"})
    assert "sesame" not in repr(settings)


def test_settings_cannot_be_changed_and_know_their_fields():
    with pytest.raises(ValidationError):
        Settings().timeout = 1  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Settings(no_such_setting=1)  # type: ignore[call-arg]


def test_every_setting_is_explained_in_the_example_file():
    from pathlib import Path

    example = (Path(__file__).parents[1] / ".env.example").read_text()
    for name in Settings.model_fields:
        assert f"\n#{variable_of(name)}=" in example, f"{name} is missing"


def test_a_variable_others_share_has_their_name():
    settings = Settings.from_env({"HF_ENDPOINT": "https://mirror.test/hub/", "TRAWL_HF_ENDPOINT": "https://other.test"})
    assert settings.hf_endpoint == "https://mirror.test/hub"


def test_a_name_in_the_file_that_is_no_setting_is_told_without_its_value(tmp_path, caplog):
    file = tmp_path / "env"
    file.write_text("TRAWL_EMBEDED=0\nTRAWL_TIMEOUT=5\nHF_ENDPOINT=https://mirror.test\n")
    with caplog.at_level(logging.WARNING):
        assert Settings.from_env({}, config_file=file).timeout == 5
    assert [record.getMessage() for record in caplog.records] == [
        "the config file sets TRAWL_EMBEDED, which is no setting of trawl"
    ]

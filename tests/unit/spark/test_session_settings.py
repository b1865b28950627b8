"""The settings of a session, and the files for a faster start. These tests do not start Spark."""

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.spark.pipeline.java import Java
from leasehold.spark.pipeline.session import JVM_OPTIONS, session_settings
from leasehold.spark.pipeline.start_up import class_archive, spark_home_without_zip

CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"


def test_one_machine_listens_on_loopback_only() -> None:
    """A local pipeline opens no port to other machines."""
    settings = session_settings({}, checkpoint="c", cores=2, jvm_options=("-Xa", "-Xb"))
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings[JVM_OPTIONS] == "-Xa -Xb"


def test_a_failed_task_is_retried() -> None:
    """The default master allows retries, unlike local[*]."""
    assert session_settings({}, checkpoint="c", cores=2, jvm_options=())["spark.master"] == "local[*,4]"


def test_settings_of_the_user_take_precedence() -> None:
    """The user can override each of our settings."""
    ours = session_settings({}, checkpoint="c", cores=2, jvm_options=("-Xa",))
    theirs = {**dict.fromkeys(ours, "theirs"), "spark.master": "local[3]"}
    assert session_settings(theirs, checkpoint="c", cores=2, jvm_options=("-Xa",)) == theirs


def test_a_cluster_gets_only_the_settings_of_the_user() -> None:
    """Its administrator decides the rest."""
    given = {"spark.master": "spark://host:7077", "spark.executor.memory": "2g"}
    assert session_settings(given, checkpoint="c", cores=2, jvm_options=("-Xa",)) == given


@pytest.mark.parametrize(
    ("checkpoint", "is_plain"), [("c", True), ("file:/c", True), ("s3a://bucket/c", False)]
)
def test_plain_checkpoint_files_are_used_only_for_local_folders(checkpoint: str, is_plain: bool) -> None:
    """For an object store, Spark chooses the checkpoint file manager."""
    settings = session_settings({}, checkpoint=checkpoint, cores=2, jvm_options=())
    assert (CHECKPOINT_FILES in settings) is is_plain


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed pyspark."""
    folder = tmp_path / "site" / "pyspark"
    for name in ("bin", "jars", "python"):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(folder.parent)])
    return folder


def test_the_home_has_everything_except_the_zip_of_pyspark(spark: Path, tmp_path: Path) -> None:
    """It consists of links and is created once. The installation is not changed."""
    for _ in range(2):
        home = spark_home_without_zip({}, spark, "4.3.0", tmp_path / "cache")
        assert home is not None
        assert {entry.name: entry.resolve() for entry in home.iterdir()} == {
            "bin": spark / "bin",
            "jars": spark / "jars",
        }
    assert (spark / "python").is_dir()
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize(
    "environment", [{"SPARK_HOME": "/opt/spark"}, {"PYSPARK_PYTHON": "/usr/bin/python3"}]
)
def test_a_home_or_python_of_the_user_is_not_replaced(
    environment: dict[str, str], spark: Path, tmp_path: Path
) -> None:
    """Another Python might find pyspark only in the zip."""
    assert spark_home_without_zip(environment, spark, "4.3.0", tmp_path) is None


def test_a_pyspark_outside_site_packages_is_not_replaced(tmp_path: Path) -> None:
    """Workers would not find it."""
    assert (
        spark_home_without_zip({"PYSPARK_PYTHON": sys.executable}, tmp_path / "pyspark", "4.3.0", tmp_path)
        is None
    )


def test_an_archive_is_recorded_once_and_then_used(tmp_path: Path) -> None:
    """The JVM writes another file, which replaces the archive only after the JVM ended successfully."""
    java = Java(tmp_path / "java", "21.0.4", "PATH")
    first = class_archive(java, tmp_path / "spark", "4.3.0", tmp_path, record=True)
    assert first.fresh is not None
    assert first.jvm_options == (f"-XX:ArchiveClassesAtExit={first.fresh}",)

    first.fresh.write_text("cut short")
    first.drop()
    assert not list(tmp_path.iterdir())

    first.fresh.write_text("whole")
    first.adopt()
    then = class_archive(java, tmp_path / "spark", "4.3.0", tmp_path, record=True)
    assert then.jvm_options == (f"-XX:SharedArchiveFile={first.file}",)


def test_unfinished_archives_of_processes_that_have_ended_are_deleted(tmp_path: Path) -> None:
    """A process that was killed while it recorded leaves a file of up to 160 MB."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    kept = ["classes-4.3.0-abc.jsa", f"classes-4.3.0-abc.{os.getpid()}.part", "java-17.0.19", "notes.part"]
    for name in (*kept, f"classes-4.3.0-abc.{ended.pid}.part", f"java-17.0.{ended.pid}.part"):
        (tmp_path / name).touch()
    class_archive(Java(tmp_path, "21.0.4", "PATH"), tmp_path, "4.3.0", tmp_path, record=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(kept)


def test_another_java_or_spark_has_its_own_archive(tmp_path: Path) -> None:
    """A JVM would refuse the archive of another version."""
    java = Java(tmp_path / "java", "21.0.4", "PATH")
    files = {
        class_archive(each, tmp_path / home, version, tmp_path, record=False).file
        for each in (java, Java(tmp_path / "java", "25", "PATH"))
        for home in ("spark", "other")
        for version in ("4.2.0", "4.3.0")
    }
    assert len(files) == 8


def test_nothing_is_recorded_by_default(tmp_path: Path) -> None:
    """Recording delays the end of the JVM by seconds."""
    java = Java(tmp_path / "java", "21.0.4", "PATH")
    assert class_archive(java, tmp_path, "4.3.0", tmp_path / "cache", record=False).jvm_options == ()
    assert not (tmp_path / "cache").exists()

"""Settings of a session, and the files that make it start sooner. No Spark is started."""

import site
import sys
from pathlib import Path

import pytest

from leasehold.spark.pipeline.java import Java
from leasehold.spark.pipeline.session import JVM_OPTIONS, session_settings
from leasehold.spark.pipeline.start_up import class_archive, spark_home_without_zip

CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"


def test_one_machine_listens_on_loopback_only() -> None:
    """Nothing of a local pipeline can be reached from outside."""
    settings = session_settings({}, checkpoint="c", cores=2, jvm_options=("-Xa", "-Xb"))
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings[JVM_OPTIONS] == "-Xa -Xb"


def test_a_failed_task_is_tried_again() -> None:
    """The default master allows it, which local[*] does not."""
    assert session_settings({}, checkpoint="c", cores=2, jvm_options=())["spark.master"] == "local[*,4]"


def test_what_the_user_says_wins() -> None:
    """Each of our settings can be set otherwise."""
    ours = session_settings({}, checkpoint="c", cores=2, jvm_options=("-Xa",))
    theirs = {**dict.fromkeys(ours, "theirs"), "spark.master": "local[3]"}
    assert session_settings(theirs, checkpoint="c", cores=2, jvm_options=("-Xa",)) == theirs


def test_a_cluster_gets_only_what_the_user_says() -> None:
    """Its administrator decides the rest."""
    given = {"spark.master": "spark://host:7077", "spark.executor.memory": "2g"}
    assert session_settings(given, checkpoint="c", cores=2, jvm_options=("-Xa",)) == given


@pytest.mark.parametrize(
    ("checkpoint", "is_plain"), [("c", True), ("file:/c", True), ("s3a://bucket/c", False)]
)
def test_plain_checkpoint_files_are_for_folders(checkpoint: str, is_plain: bool) -> None:
    """An object store keeps the manager that Spark chooses for it."""
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


def test_the_lean_home_has_everything_but_the_zip_of_pyspark(spark: Path, tmp_path: Path) -> None:
    """By links, made once; the installation is left as it is."""
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
def test_a_home_or_python_that_the_user_chose_is_left_alone(
    environment: dict[str, str], spark: Path, tmp_path: Path
) -> None:
    """Another Python might find pyspark nowhere but in the zip."""
    assert spark_home_without_zip(environment, spark, "4.3.0", tmp_path) is None


def test_a_pyspark_outside_of_site_packages_is_left_alone(tmp_path: Path) -> None:
    """Workers would not find it by themselves."""
    assert (
        spark_home_without_zip({"PYSPARK_PYTHON": sys.executable}, tmp_path / "pyspark", "4.3.0", tmp_path)
        is None
    )


def test_an_archive_is_recorded_once_and_then_used(tmp_path: Path) -> None:
    """The JVM writes beside the place, and what it left is used only after it has ended well."""
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


def test_another_java_or_spark_has_an_archive_of_its_own(tmp_path: Path) -> None:
    """A JVM would refuse one that does not fit."""
    java = Java(tmp_path / "java", "21.0.4", "PATH")
    files = {
        class_archive(each, tmp_path / home, version, tmp_path, record=False).file
        for each in (java, Java(tmp_path / "java", "25", "PATH"))
        for home in ("spark", "other")
        for version in ("4.2.0", "4.3.0")
    }
    assert len(files) == 8


def test_nothing_is_recorded_unasked(tmp_path: Path) -> None:
    """Ending a JVM that records takes seconds."""
    java = Java(tmp_path / "java", "21.0.4", "PATH")
    assert class_archive(java, tmp_path, "4.3.0", tmp_path / "cache", record=False).jvm_options == ()
    assert not (tmp_path / "cache").exists()

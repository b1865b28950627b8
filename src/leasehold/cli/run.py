"""`leasehold run`: runs a worker, or several worker processes below a supervisor.

What only one of them needs is imported where it is used: a supervisor has no consumer, and most workers no processor of
kclpy.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasehold.adapters.cpu_limits import count_usable_cpus
from leasehold.cli.option_values import check_target, refuse_values
from leasehold.core.supervision.process_count import parse_process_count
from leasehold.core.supervision.restarts import EXPLAINED_CODE
from leasehold.errors import ConfigError, LeaseholdError, ServiceError

if TYPE_CHECKING:
    from leasehold.worker.consumer import Consumer

LOG_HEAD: Final = "%(asctime)s %(levelname)s %(name)s"
AWS_LOGGERS: Final = ("boto3", "botocore", "urllib3", "asyncio")
LEVELS: Final = ("debug", "info", "warning", "error")


@click.command()
@click.argument("target", required=False, metavar="[MODULE:CONSUMER]")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read settings and handler from this TOML file.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Lowest level to log, to stderr.",
)
@click.option(
    "--log-aws",
    is_flag=True,
    help="At level debug, also show the lines of the AWS SDK and other libraries of ours.",
)
@click.option(
    "--kclpy",
    metavar="MODULE:CLASS",
    help="Run this record processor of kclpy, in this process. Settings come from --config, --properties or the "
    "LEASEHOLD_* variables.",
)
@click.option(
    "--properties",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --kclpy: read the settings from this properties file of the KCL.",
)
@click.option(
    "--kclpy-alias",
    is_flag=True,
    help="With --kclpy: let imports of amazon_kclpy, which is not installed, find leasehold.kclpy.",
)
@click.option(
    "--restart-failed",
    is_flag=True,
    help="With --kclpy: do not skip a batch on which the processor fails. Its shard begins again from its checkpoint.",
)
@click.option(
    "--processes",
    metavar="NUMBER|auto",
    callback=lambda _context, _option, value: _parse_processes(value),
    help="Run this many worker processes, each a member of the fleet; auto: one for each processor that this process "
    "may use. Crashed ones are restarted.",
)
# Given to the processes that a supervisor starts.
@click.option("--member", metavar="NUMBER:DESCRIPTOR", hidden=True)
def run(
    *,
    log_level: str,
    log_aws: bool,
    processes: int | None,
    member: str | None,
    **options: Any,
) -> None:
    """Run a worker.

    The worker runs until SIGTERM or SIGINT. Then it finishes its batches, checkpoints, releases its leases and exits
    with 0.

    MODULE:CONSUMER names a Consumer in a module of the current directory or of an installed package. With --config
    the consumer is built from the file. Its table [run] names the handler: handler = "module:function", or
    processor = "module:Class" for a record processor of kclpy.
    """
    _check_usage(options)
    number = None if member is None else int(member.partition(":")[0])
    configure_logging(log_level.upper(), log_aws=log_aws, process=number)
    if processes is not None:
        from leasehold.cli.processes import run_processes  # noqa: PLC0415

        run_processes(processes, {"log_level": log_level, "log_aws": log_aws, **options})
    elif member is None:
        _make_consumer(options).run()
    else:
        _run_member(member, options)


def _parse_processes(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_process_count(text) or count_usable_cpus()
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def _make_consumer(options: Mapping[str, Any]) -> Consumer:
    from leasehold.cli.consumer_target import load_consumer, load_target  # noqa: PLC0415

    if options["kclpy"] is None:
        return load_consumer(options["target"], options["config"])
    from leasehold.cli.kclpy_processors import ProcessorOptions, make_processor_consumer  # noqa: PLC0415

    # First the options: the alias must exist before the module is imported.
    chosen = ProcessorOptions(**{name: options[name] for name in ("kclpy_alias", "restart_failed")})
    return make_processor_consumer(
        load_target(options["kclpy"]), chosen, config=options["config"], properties=options["properties"]
    )


def _run_member(member: str, options: Mapping[str, Any]) -> None:
    """Run one of the processes of a supervisor."""
    from leasehold.worker.processes.member_link import MemberLink  # noqa: PLC0415

    number, _, descriptor = member.partition(":")
    with closing(MemberLink(int(number), int(descriptor))) as link:
        try:
            _make_consumer(options).run_as_member(link)
        except ServiceError:
            raise  # the service may respond after a restart
        except LeaseholdError as error:
            link.explain(str(error))
            raise SystemExit(EXPLAINED_CODE) from error


def _check_usage(options: Mapping[str, Any]) -> None:
    target, config, properties = options["target"], options["config"], options["properties"]
    if options["kclpy"] is None:
        if (target is None) == (config is None):
            raise click.UsageError("Give either MODULE:CONSUMER or --config FILE, or --kclpy MODULE:CLASS.")
        if properties is not None or options["kclpy_alias"] or options["restart_failed"]:
            raise click.UsageError("--properties, --kclpy-alias and --restart-failed need --kclpy.")
    elif target is not None or (config is not None and properties is not None):
        raise click.UsageError("With --kclpy give one of --config and --properties, or none.")
    if named := options["kclpy"] or target:
        with refuse_values():
            check_target(named)


def configure_logging(level: str, *, log_aws: bool, process: int | None = None) -> None:
    """Log to stderr, with the number of the process if there are several.

    The AWS SDK writes a dozen debug lines for each call, which hide all others.
    """
    tag = "" if process is None else f"process={process} "
    logging.basicConfig(format=f"{LOG_HEAD} {tag}%(message)s")
    logging.getLogger().setLevel(level)
    if not log_aws:
        for name in AWS_LOGGERS:
            logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))

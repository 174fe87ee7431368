"""``stepfast serve``: a server in the foreground."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from stepfast.cli.failures import Usage
from stepfast.cli.setup import Setup, command
from stepfast.cli.text import without_secrets


class LogFormat(StrEnum):
    text = "text"
    json = "json"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def add(app: typer.Typer) -> None:
    command(app, "serve")(serve)


def serve(
    at: Setup,
    host: Annotated[str, typer.Option(envvar="STEPFAST_HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="STEPFAST_PORT", min=0, max=65535, help="The port; 0 is any that is free.")
    ] = 8100,
    store: Annotated[
        str | None,
        typer.Option(help="The store to serve: sqlite:///file.db or postgresql://… The same as --url here."),
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="A certificate chain (PEM).")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its private key (PEM).")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy in front of this server does TLS.")
    ] = False,
    require_keys: Annotated[
        bool, typer.Option("--require-keys", help="Let nobody in without a key, also on this machine.")
    ] = False,
    lease_seconds: Annotated[
        float, typer.Option(min=1, help="How long work stays with a worker that is not heard of.")
    ] = 30.0,
    shutdown_seconds: Annotated[float, typer.Option(min=0, help="How long requests may take to end.")] = 10.0,
    log_format: Annotated[LogFormat, typer.Option(help="How to log, on stderr.")] = LogFormat.text,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log.")] = LogLevel.info,
    access_log: Annotated[bool, typer.Option(help="Log each request.")] = True,
) -> None:
    """Serve a store over HTTP until SIGTERM or Ctrl-C. Prints the URL, and on the first start the key.

    Secrets come from the environment: STEPFAST_PEPPER (for hashing keys), STEPFAST_METRICS_TOKEN,
    STEPFAST_TLS_KEY_PASSWORD.
    """
    from stepfast.cli.out import say
    from stepfast.server.serve import run
    from stepfast.server.settings import Settings, limits_from

    place = store or at.place
    if place is not None and place.startswith(("http://", "https://")):
        raise Usage(f"store: {without_secrets(place)} is a server already. Name the store to serve with --store.")

    def tell(line: str) -> None:
        say(line)
        if line.startswith("Key: any"):
            where = f" --url {without_secrets(place)}" if place else ""
            say(f"To let in only those who have a key, make the first: stepfast{where} keys create")

    run(
        Settings(
            host=host,
            port=port,
            store=place or "",
            require_keys=require_keys,
            behind_proxy=behind_proxy,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_key_password=os.environ.get("STEPFAST_TLS_KEY_PASSWORD"),
            pepper=os.environ.get("STEPFAST_PEPPER") or None,
            metrics_token=os.environ.get("STEPFAST_METRICS_TOKEN") or None,
            limits=limits_from(os.environ),
            lease_seconds=lease_seconds,
            shutdown_seconds=shutdown_seconds,
            log_format=log_format.value,
            log_level=log_level.value,
            access_log=access_log,
        ),
        tell,
    )

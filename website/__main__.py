"""Build the documentation site.

python -m website check                      the documents and the API reference, strictly
python -m website prose [PATH...]            wording to avoid, in documents and code
python -m website tables                     the tables of the option references, written
python -m website build                      the site, to be looked at on this machine
python -m website publish VERSION --url URL  the site, committed to the branch gh-pages
"""

from __future__ import annotations

import argparse
from pathlib import Path

import spark_ssp
from website import prose
from website.build import (
    BRANCH,
    HERE,
    PROJECT,
    SITE,
    add_mermaid,
    build,
    list_as_only_version,
    publish,
)
from website.option_tables import write_tables


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    prose_of = commands.add_parser("prose")
    prose_of.add_argument("paths", nargs="*", type=Path)
    commands.add_parser("tables")
    commands.add_parser("build")
    publishing = commands.add_parser("publish")
    publishing.add_argument("version", help="the folder of the version, such as 0.1 or dev")
    publishing.add_argument("--url", required=True, help="the address above the versions' folders")
    arguments = parser.parse_args()
    if arguments.command == "check":
        build()
        print(*prose.above_limit(prose.find(prose.judged_files())), sep="\n")
        return
    if arguments.command == "tables":
        write_tables()
        return
    if arguments.command == "prose":
        prose.show(arguments.paths)
        return
    build(arguments.url if arguments.command == "publish" else HERE)
    add_mermaid(SITE)
    if arguments.command == "publish":
        publish(SITE, arguments.version)
        print(f"{arguments.version} is committed to {BRANCH}; push it to publish it")
        return
    list_as_only_version(spark_ssp.__version__)
    folder = PROJECT.relative_to(PROJECT.parents[1])
    print(f"python3 -m http.server --bind 127.0.0.1 --directory {folder} 8000\n{HERE}{SITE.name}/")


if __name__ == "__main__":
    main()

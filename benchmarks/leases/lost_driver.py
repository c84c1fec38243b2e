"""Time until the drivers that remain hold the leases of one that is lost with its machine.

    python -m benchmarks.leases.lost_driver [--drivers 4 10] [--leases 1000 1000] [--failover 30]

The lease agents' own loops, in simulated time: an update takes 10 ms, a page of a scan 30 ms. So
the times do not depend on the machine. `CPU` is that of one agent's loop, without its requests and
their parsing, and does.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.support.report import Report, spread
from tests.support.simulation.shared_leases import lose_a_driver


def run(
    *, drivers: Sequence[int], leases: Sequence[int], failover: Sequence[float], rounds: int
) -> Report:
    """Measure each number of drivers with its number of leases, and each failover time, in
    seconds."""
    report = Report(
        name="leases.lost_driver",
        command="python -m benchmarks.leases.lost_driver"
        f" --drivers {' '.join(map(str, drivers))} --leases {' '.join(map(str, leases))}"
        f" --failover {' '.join(f'{one:g}' for one in failover)} --rounds {rounds}",
        columns=(
            "drivers, leases, failover time",
            "leases lost",
            "first taken, s",
            "all taken, s",
            "writes refused",
            "writes a second, all drivers",
            "agent's loop: CPU ms a second",
        ),
    )
    for number, shared in zip(drivers, leases, strict=True):
        for failover_s in failover:
            found = [
                lose_a_driver(
                    drivers=number, leases=shared, failover_ms=round(failover_s * 1000), seed=seed
                )
                for seed in range(rounds)
            ]
            report.add(
                f"{number}, {shared:,}, {failover_s:g} s",
                f"{found[0].leases:,}",
                spread([one.first_s for one in found]).text(1),
                spread([one.all_s for one in found]).text(1),
                spread([one.refused for one in found]).text(),
                spread([one.writes_a_second for one in found]).text(),
                spread([one.cpu_ms_a_second for one in found]).text(1),
                drivers=number,
                leases=shared,
                failover_s=failover_s,
                first_s=[one.first_s for one in found],
                all_s=[one.all_s for one in found],
                cpu_ms_a_second=[one.cpu_ms_a_second for one in found],
            )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--drivers", type=int, nargs="+", default=[4, 10])
    parser.add_argument("--leases", type=int, nargs="+", default=[1000, 1000])
    parser.add_argument("--failover", type=float, nargs="+", default=[30])
    parser.add_argument("--rounds", type=int, default=1)
    run(**vars(parser.parse_args())).publish()


if __name__ == "__main__":
    main()

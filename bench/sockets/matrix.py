#!/usr/bin/env python3
"""matrix.py OUT: mean / p99 TTFT in ms of the runs of matrix.sh, a row for each policy and traffic, means over the seeds.

`observed / expected` is its median over the answers after the 50th, and the share of answers within 0.67 to 1.5.
"""
import json
import statistics
import sys


def main():
    cells, traffics = {}, []
    for line in open(sys.argv[1]):
        row = json.loads(line)
        traffic = (row["history"], row["system"], row["rate"])
        if traffic not in traffics:
            traffics.append(traffic)
        cells.setdefault(row["policy"], {}).setdefault(traffic, []).append(row)
    mean = lambda rows, key: statistics.mean(row[key] for row in rows)
    print("| Policy | " + " | ".join(f"{history}, {system:,} words, {rate:g}/s" for history, system, rate in traffics) + " | observed / expected |")
    print("|---|" + "--:|" * (len(traffics) + 1))
    for policy, by_traffic in cells.items():
        times = [by_traffic.get(traffic) for traffic in traffics]
        judged = [row for rows in by_traffic.values() for row in rows if row.get("observed_over_expected_median")]
        columns = [f"{mean(rows, 'mean_ms'):.0f} / {mean(rows, 'p99_ms'):.0f}" if rows else "" for rows in times]
        ratio = f"{mean(judged, 'observed_over_expected_median'):.2f}, {mean(judged, 'within_0.67_1.5'):.0%}" if judged else ""
        print(f"| `{policy}` | " + " | ".join(columns) + f" | {ratio} |")


if __name__ == "__main__":
    main()

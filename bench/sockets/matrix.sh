#!/usr/bin/env bash
# matrix.sh WARMROUTE OUT: policies after a reset of the engines' caches and on fresh engines, one JSON line a run in OUT.
#
# Four simulated engines in real time. A run takes three quarters of a minute, all of them three hours; SYSTEMS, RATES, SEEDS, HISTORIES
# and POLICIES choose fewer. The committed runs were made in four parts at a time, one for each history and length, with nothing else
# beside them: 45 minutes on two cores. `matrix.py OUT` prints the table.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for history in ${HISTORIES:-reset fresh}; do
    for system in ${SYSTEMS:-3000 6000}; do
        for rate in ${RATES:-1.5 3 4}; do
            for seed in ${SEEDS:-5 6 7 8}; do
                python3 "$here/run.py" --warmroute "$1" --history "$history" --system "$system" --rate "$rate" --seed "$seed" \
                    ${POLICIES:-expected_ttft+events expected_ttft cache_aware+events cache_aware product+events} | tee -a "$2"
            done
        done
    done
done

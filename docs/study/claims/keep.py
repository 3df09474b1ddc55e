#!/usr/bin/env python3
"""Writes a lab's JSON compactly: one run a line, six significant digits. Stdin to stdout."""
import json
import sys


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def line(value):
    return json.dumps(rounded(value), ensure_ascii=False)


def runs(results):
    return "[\n" + ",\n".join(line(run) for run in results) + "\n]"


def point(one):
    return f'{{"values": {line(one["values"])}, "bounds": {line(one["bounds"])}, "results": {runs(one["results"])}}}'


whole = json.load(sys.stdin)
parts = [f'"command": {line(whole["command"])}', f'"setup": {line(whole["setup"])}']
if "points" in whole:
    parts += [f'"parameters": {line(whole["parameters"])}', '"points": [\n' + ",\n".join(map(point, whole["points"])) + "\n]"]
else:
    parts += [f'"bounds": {line(whole["bounds"])}', f'"results": {runs(whole["results"])}']
print("{" + ",\n".join(parts) + "}")

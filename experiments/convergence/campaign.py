"""Campaign: many runs, several at once on one device, until the time is up.

What is not finished goes on from its checkpoint the next time.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.convergence.matrix import Run
from experiments.convergence.parts import hand_over, take_over
from experiments.train.run import append, read
from thinwire.tools.report.files import rounded

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 45  # too little time is left to start another run


@dataclass(frozen=True)
class Campaign:
    """Runs, the file of their results, and the page that is written from it."""

    command: str
    description: str
    matrix: Callable[[dict[str, dict]], list[Run]]
    folders: Mapping[str, Sequence[str]]  # where a task's data may be
    results: Path
    write: Callable[[Path, Sequence[Run], Sequence[dict[str, Any]]], None]
    stages: Sequence[int] = (1, 2, 3)
    dropped: Sequence[str] = ("checksum", "seconds", "step_loss")  # of histories


def chosen(campaign: Campaign, arguments: argparse.Namespace) -> list[Run]:
    """The runs that were asked for and have no result yet."""
    done = {result["key"] for result in read(campaign.results)}
    if arguments.out:
        left = arguments.out / campaign.results.name
        done |= {result["key"] for result in read(left)}
    return [
        run
        for run in campaign.matrix(arguments.recipes)
        if run.spec.task in arguments.tasks
        and run.stage in arguments.stages
        and (arguments.only is None or arguments.only in run.label)
        and (run.spec.key not in done or arguments.probe)
    ]


def with_needed(
    runs: list[Run], campaign: Campaign, arguments: argparse.Namespace
) -> list[Run]:
    """These runs, after those that leave what they need and is not there."""
    files = {run.needs for run in runs if run.needs} - {run.leaves for run in runs}
    missing = {name for name in files if not (arguments.data / name).exists()}
    every = campaign.matrix(arguments.recipes)
    return [run for run in every if run.leaves in missing] + runs


def work(campaign: Campaign, arguments: argparse.Namespace) -> None:
    """Start runs as others end, until the time is up."""
    deadline = time.monotonic() + 60 * arguments.minutes
    waiting = with_needed(chosen(campaign, arguments), campaign, arguments)
    _ready(arguments)
    environment = _environment(arguments)
    running: dict[str, subprocess.Popen] = {}
    print(f"{len(waiting)} runs to do, {arguments.at_once} at once", flush=True)
    while (waiting or running) and time.monotonic() < deadline + 30:
        left = deadline - time.monotonic()
        while waiting and len(running) < arguments.at_once and left > _START_SECONDS:
            run = _next(waiting, running, arguments.data)
            if run is None:
                break
            job = _job(run, campaign, arguments, seconds=left - 10)
            running[run.name] = _start(run, arguments, job, environment)
            time.sleep(arguments.stagger)
            left = deadline - time.monotonic()
        for name in [n for n, process in running.items() if process.poll() is not None]:
            code = running.pop(name).returncode
            print(f"{code} {_last_line(arguments.work / name)}", flush=True)
        if left < _START_SECONDS and not running:
            break
        time.sleep(0.5)
    for name, process in running.items():
        process.kill()
        print(f"killed: {_last_line(arguments.work / name)}", flush=True)
    if arguments.out:
        _hand_over(arguments.work, arguments.out)


def _next(waiting: list[Run], running: Mapping[str, object], data: Path) -> Run | None:
    """The first run that has what it needs; None where that is still to come."""
    for run in waiting:
        if not run.needs or (data / run.needs).exists() or not running:
            waiting.remove(run)
            return run
    return None


def _ready(arguments: argparse.Namespace) -> None:
    """The folder of work, with the checkpoints to go on from."""
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.resume_from:
        for path in take_over(arguments.resume_from, arguments.work):
            print(f"goes on: {path.name}", flush=True)


def _job(
    run: Run, campaign: Campaign, arguments: argparse.Namespace, *, seconds: float
) -> dict[str, Any]:
    folder = arguments.out or campaign.results.parent
    return {
        "spec": json.loads(run.spec.key),
        "data": str(_folder(arguments.data, campaign.folders[run.spec.task])),
        "results": str(folder / campaign.results.name),
        "checkpoint": str(arguments.work / f"{run.name}.pt"),
        "seconds": seconds,
        "device": arguments.device,
        "reduce_on": arguments.reduce_on,
        "capture": not arguments.eager,
        "verify": False,
        "probe": arguments.probe,
        "model": str(arguments.data / run.leaves) if run.leaves else None,
    }


def _start(
    run: Run, arguments: argparse.Namespace, job: dict, env: dict
) -> subprocess.Popen:
    path = arguments.work / f"{run.name}.json"
    path.write_text(json.dumps(job))
    with (arguments.work / f"{run.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "experiments.train.jobs", str(path)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
        )


def _folder(data: Path, names: Sequence[str]) -> Path:
    """The first of a task's folders that is there; if none is, the task will say so."""
    known = [data / name for name in names]
    return next((folder for folder in known if folder.exists()), known[0])


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return _with_mps(env, arguments) if arguments.mps else env


def _with_mps(env: dict[str, str], arguments: argparse.Namespace) -> dict[str, str]:
    """NVIDIA's service that lets kernels of several processes run side by side."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        print("no nvidia-cuda-mps-control: processes take turns on the device")
        return env
    folder = arguments.work / "mps"
    folder.mkdir(exist_ok=True)
    shared = {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder.resolve()),
        "CUDA_MPS_LOG_DIRECTORY": str(folder.resolve()),
    }
    subprocess.run([control, "-d"], env={**env, **shared}, check=False)
    try:
        trial = subprocess.run(
            [sys.executable, "-c", "import torch; print(torch.ones(1).cuda().item())"],
            env={**env, **shared},
            capture_output=True,
            timeout=60,
            check=False,
        )
        works = trial.returncode == 0
    except subprocess.TimeoutExpired:
        works = False
    print("MPS works" if works else "MPS does not work here: taking turns", flush=True)
    return {**env, **shared} if works else env


def _hand_over(work: Path, out: Path) -> None:
    """Copy the checkpoints that fit, and the output of all runs."""
    out.mkdir(parents=True, exist_ok=True)
    for path in hand_over(list(work.glob("*.pt")), out):
        print(f"left behind: {path.name}, {path.stat().st_size >> 20} MiB")
    with (out / "log.txt").open("w") as log:
        for path in sorted(work.glob("*.log")):
            log.write(f"== {path.stem}\n{path.read_text(errors='replace')}\n")


def _last_line(path: Path) -> str:
    text = path.with_name(f"{path.name}.log").read_text(errors="replace")
    lines = text.strip().splitlines()
    return f"{path.name}: {lines[-1] if lines else 'nothing said'}"


def merge(source: Path, campaign: Campaign) -> None:
    """Append results that are not there yet."""
    results = campaign.results
    known = {result["key"] for result in read(results)}
    for result in read(source):
        if result["key"] not in known:
            known.add(result["key"])
            append(results, compacted(result, campaign.dropped))


def compacted(result: dict, dropped: Sequence[str]) -> dict:
    """A result without these lists, which have an entry for every epoch or step."""
    history = {k: v for k, v in result["history"].items() if k not in dropped}
    return rounded({**result, "history": history}, digits=9)


def _arguments(campaign: Campaign) -> argparse.Namespace:
    folders = campaign.folders
    parser = argparse.ArgumentParser(
        prog=campaign.command,
        description=campaign.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--recipes", type=json.loads, default={}, help="JSON: by task")
    parser.add_argument("--tasks", nargs="+", default=list(folders), choices=folders)
    stages = list(campaign.stages)
    parser.add_argument("--stages", nargs="+", type=int, default=stages)
    parser.add_argument("--only", help="runs whose label contains this")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--stagger", type=float, default=0.0, help="seconds")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--reduce-on", default="auto")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--mps", action="store_true", help="try NVIDIA's MPS")
    parser.add_argument("--probe", type=int, default=0, help="steps to time")
    parser.add_argument("--out", type=Path, help="where results go instead")
    parser.add_argument("--work", type=Path, default=Path(".convergence"))
    parser.add_argument(
        "--resume-from", type=Path, help="checkpoints to go on from, also in parts"
    )
    parser.add_argument("--merge", type=Path, help="results to take over")
    parser.add_argument("--list", action="store_true", help="what is missing")
    parser.add_argument("--write", type=Path, help="the page to write")
    return parser.parse_args()


def main(campaign: Campaign) -> None:
    """Do what the command line asks for."""
    arguments = _arguments(campaign)
    if arguments.merge:
        merge(arguments.merge, campaign)
    elif arguments.write:
        runs = campaign.matrix(arguments.recipes)
        campaign.write(arguments.write, runs, list(read(campaign.results)))
    elif arguments.list:
        for run in chosen(campaign, arguments):
            print(run.stage, run.spec.task, run.label, run.spec.seed)
    elif arguments.data is None:
        raise SystemExit("give --data, --list, --merge or --write")
    else:
        work(campaign, arguments)

"""The program that runs inside the container, around the user's command.

It fetches inputs, writes the spec, runs the command as its own process group, carries outputs away while the command
runs and after it ended however it ended, and writes the exit marker last. One file, standard library only, Python 3.8
and newer: it must start in any image that has a python3, so modules that only some jobs need are imported late.
"""

import errno
import json
import os
import signal
import sys
import time

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
CHECKPOINTS = (".pth", ".pt", ".ckpt", ".tlt", ".hdf5")
LOCAL_SCHEMES = ("file", "lustre", "slurm")
TOOL_SCHEMES = ("hf_model", "hf_dataset", "ngc")
RESUME_LEAF = "resume_training_checkpoint_path"
UNSET = (None, "", "???")
RUNNER_FAILED = 125  # what docker and timeout(1) use for "the wrapper failed, not the command"
TRANSFERS = 8
TRIES = 4


class RunnerError(Exception):
    """The runner could not do its own part; `phase` says which."""

    def __init__(self, phase, message):
        super().__init__(message)
        self.phase = phase


class Stopped(BaseException):
    """A signal asked for the end before the command was started."""


def say(text):
    """A line in the job's log; a full disk must not end the job."""
    try:
        sys.stdout.write("[prefect-tao] %s\n" % text)
        sys.stdout.flush()
    except OSError:
        pass


# -- pointers into nested specs: a.b[0].c ------------------------------------------------------------------------------


def parse_pointer(pointer):
    """The steps of `a.b[0].c`: ["a", "b", 0, "c"]. Raises ValueError when it is not a pointer."""
    steps = []
    for part in pointer.split("."):
        name, bracket, rest = part.partition("[")
        if name:
            steps.append(name)
        elif not bracket or not steps:
            raise ValueError("%r is not a pointer such as a.b[0].c" % pointer)
        while bracket:
            index, closing, rest = rest.partition("]")
            if not closing or not index.isdigit():
                raise ValueError("%r is not a pointer such as a.b[0].c" % pointer)
            steps.append(int(index))
            if rest and not rest.startswith("["):
                raise ValueError("%r is not a pointer such as a.b[0].c" % pointer)
            bracket, rest = rest[:1], rest[1:]
    return steps


def get_pointer(tree, pointer):
    """The value at `pointer`, or None where the path ends early."""
    for step in parse_pointer(pointer):
        try:
            tree = tree[step]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def set_pointer(tree, pointer, value):
    """Put `value` at `pointer`, making maps on the way. Raises ValueError where the tree has another shape."""
    steps = parse_pointer(pointer)
    for step, following in zip(steps, steps[1:]):
        if isinstance(step, int):
            if not isinstance(tree, list) or step >= len(tree):
                raise ValueError("%s: there is no element %d" % (pointer, step))
        elif not isinstance(tree, dict):
            raise ValueError("%s: %r is not a map" % (pointer, step))
        elif tree.get(step) is None:
            tree[step] = [] if isinstance(following, int) else {}
        tree = tree[step]
    last = steps[-1]
    if isinstance(last, int):
        if not isinstance(tree, list) or last > len(tree):
            raise ValueError("%s: there is no element %d" % (pointer, last))
        tree[last : last + 1] = [value]
    elif isinstance(tree, dict):
        tree[last] = value
    else:
        raise ValueError("%s: its parent is not a map" % pointer)


def walk(tree, prefix=""):
    """Every leaf of `tree` as (pointer, value)."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from walk(value, "%s.%s" % (prefix, key) if prefix else key)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from walk(value, "%s[%d]" % (prefix, index))
    else:
        yield prefix, tree


# -- config files ------------------------------------------------------------------------------------------------------


def quote(text):
    """A double-quoted string that YAML 1.1, TOML 1.0 and JSON all read back as `text`."""
    return "".join(
        char
        if " " <= char <= "~" or ("\xa0" <= char <= "\ud7ff" and char not in "\u2028\u2029")
        else "\\u%04x" % ord(char)
        if ord(char) < 0x10000 and not "\ue000" <= char <= "\ufffd"
        else char
        for char in json.dumps(text, ensure_ascii=False)
    )


def scalar(value):
    """A value that is neither map nor list, as YAML and TOML both write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        mantissa, letter, exponent = text.partition("e")
        # YAML 1.1 readers take 1e-05 for text; with a point in it, every reader sees the number.
        return mantissa + ".0e" + exponent if letter and "." not in mantissa else text
    return str(value) if isinstance(value, int) else quote(value)


def to_yaml(value, depth=0):
    """`value` as block-style YAML."""
    pad = "  " * depth
    if isinstance(value, dict) and value:
        return "".join("%s%s:%s" % (pad, quote(key), _yaml_child(inner, depth)) for key, inner in value.items())
    if isinstance(value, list) and value:
        return "".join("%s-%s" % (pad, _yaml_child(inner, depth)) for inner in value)
    return "%s%s\n" % (pad, _yaml_leaf(value))


def _yaml_child(value, depth):
    if isinstance(value, (dict, list)) and value:
        return "\n" + to_yaml(value, depth + 1)
    return " %s\n" % _yaml_leaf(value)


def _yaml_leaf(value):
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return "{}" if isinstance(value, dict) else "[]"
    return scalar(value)


def to_toml(table, path=()):
    """`table` as TOML: its own values first, then its tables. A null has no form in TOML and is left out."""
    lines, below = [], []
    for key, value in table.items():
        name = key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else quote(key)
        inner = path + (name,)
        if isinstance(value, dict):
            below.append("\n[%s]\n%s" % (".".join(inner), to_toml(value, inner)))
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            below.extend("\n[[%s]]\n%s" % (".".join(inner), to_toml(item, inner)) for item in value)
        elif value is not None:
            lines.append("%s = %s\n" % (name, _toml_value(value)))
    return "".join(lines + below)


def _toml_value(value):
    if isinstance(value, list):
        return "[%s]" % ", ".join(_toml_value(item) for item in value if item is not None)
    if isinstance(value, dict):
        pairs = ("%s = %s" % (quote(key), _toml_value(item)) for key, item in value.items() if item is not None)
        return "{%s}" % ", ".join(pairs)
    return scalar(value)


def config_text(spec, config_format):
    """The spec file's text."""
    if config_format == "json":
        return json.dumps(spec, indent=2, ensure_ascii=False) + "\n"
    return to_toml(spec) if config_format == "toml" else to_yaml(spec)


# -- small file matters ------------------------------------------------------------------------------------------------


def write_atomic(path, data, mode=0o644):
    """Write a whole file or nothing: under a temporary name first, then renamed."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


def safe_name(text):
    """`text` as one folder name."""
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in text).strip(".") or "_"


def is_archive(path):
    return path.lower().endswith(ARCHIVES)


def stem(path):
    """The file name of an archive without its ending: images.tar.gz is unpacked as images."""
    name = os.path.basename(path)
    for ending in sorted(ARCHIVES, key=len, reverse=True):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def unpack(archive, folder):
    """Unpack a tar or zip file; a member that would leave `folder`, and every link or device, is refused."""
    import shutil
    import tarfile
    import zipfile

    if os.path.isdir(folder):
        return folder
    temporary = "%s.%d.part" % (folder, os.getpid())
    os.makedirs(temporary)
    try:
        if archive.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as source:
                for info in source.infolist():
                    if (info.external_attr >> 16) & 0o170000 == 0o120000:
                        raise RunnerError(
                            "inputs", "%s holds a link (%s); links are refused" % (archive, info.filename)
                        )
                    _refuse_outside(archive, temporary, info.filename)
                source.extractall(temporary)
        else:
            with tarfile.open(archive) as source:
                members = source.getmembers()
                for member in members:
                    if not (member.isfile() or member.isdir()):
                        raise RunnerError("inputs", "%s holds a link or device (%s); refused" % (archive, member.name))
                    _refuse_outside(archive, temporary, member.name)
                    member.mode = (member.mode or 0o644) & 0o777 | 0o600 | (0o100 if member.isdir() else 0)
                    member.uid = member.gid = -1
                source.extractall(temporary, members)
        # An archive of one folder with the archive's own name unpacks to that folder, not to a folder in a folder.
        inner = os.path.join(temporary, os.path.basename(folder))
        alone = os.listdir(temporary) == [os.path.basename(folder)] and os.path.isdir(inner)
        _rename_once(inner if alone else temporary, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise RunnerError("inputs", "cannot unpack %s: %s" % (archive, error))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _refuse_outside(archive, folder, member):
    target = os.path.realpath(os.path.join(folder, member))
    if target != os.path.realpath(folder) and not target.startswith(os.path.realpath(folder) + os.sep):
        raise RunnerError("inputs", "%s holds %r, which would leave its folder; refused" % (archive, member))


def _rename_once(source, target):
    """Rename, or accept that another rank was quicker with the same content."""
    try:
        os.rename(source, target)
    except OSError:
        if not os.path.exists(target):
            raise


def run_parallel(tasks):
    """Run callables side by side; the first failure is raised after all have ended."""
    if len(tasks) < 2:
        return [task() for task in tasks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(TRANSFERS) as pool:
        futures = [pool.submit(task) for task in tasks]
    return [future.result() for future in futures]


def patiently(phase, what, action):
    """Try `action` a few times with growing pauses: object stores and hubs hiccup."""
    for attempt in range(1, TRIES + 1):
        try:
            return action()
        except RunnerError:
            raise
        except Exception as error:
            if attempt == TRIES or getattr(error, "final", False):
                raise RunnerError(phase, "%s failed: %s" % (what, error))
            time.sleep(0.5 * 2**attempt)


# -- object storage ----------------------------------------------------------------------------------------------------


class BotoStore:
    """S3 through the image's boto3."""

    def __init__(self, boto3):
        from botocore.config import Config

        self.client = boto3.client(
            "s3",
            endpoint_url=os.environ.get("AWS_ENDPOINT_URL") or None,
            region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
            config=Config(retries={"max_attempts": 5, "mode": "standard"}, max_pool_connections=4 * TRANSFERS),
        )

    def list(self, bucket, prefix):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [(item["Key"], item["Size"]) for page in pages for item in page.get("Contents", ())]

    def get(self, bucket, key, path):
        self.client.download_file(bucket, key, path)

    def put(self, path, bucket, key):
        self.client.upload_file(path, bucket, key)


class AwsCliStore:
    """S3 through the image's aws command."""

    def __init__(self, program):
        self.program = [program]
        if os.environ.get("AWS_ENDPOINT_URL"):
            self.program += ["--endpoint-url", os.environ["AWS_ENDPOINT_URL"]]

    def _run(self, *words):
        import subprocess

        done = subprocess.run(self.program + list(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode:
            raise OSError(done.stderr.decode(errors="replace").strip() or "aws ended with %d" % done.returncode)
        return done.stdout

    def list(self, bucket, prefix):
        words = ("s3api", "list-objects-v2", "--bucket", bucket, "--prefix", prefix, "--output", "json")
        return [(item["Key"], item["Size"]) for item in json.loads(self._run(*words) or b"{}").get("Contents") or ()]

    def get(self, bucket, key, path):
        self._run("s3", "cp", "--only-show-errors", "s3://%s/%s" % (bucket, key), path)

    def put(self, path, bucket, key):
        self._run("s3", "cp", "--only-show-errors", path, "s3://%s/%s" % (bucket, key))


_store = None


def store():
    """The one store of this run, through whatever the image has."""
    global _store
    if _store is None:
        from shutil import which

        try:
            import boto3
        except ImportError:
            if not which("aws"):
                raise RunnerError("inputs", "s3:// needs boto3 or the aws command in the image, and it has neither")
            _store = AwsCliStore(which("aws"))
        else:
            _store = BotoStore(boto3)
    return _store


def split_s3(uri):
    bucket, _, key = uri[len("s3://") :].partition("/")
    return bucket, key.strip("/")


def fetch_s3(uri, target):
    """Download the object or the folder of objects at `uri` to `target`; which of the two it is, the store says."""
    bucket, key = split_s3(uri)
    found = patiently("inputs", "listing %s" % uri, lambda: store().list(bucket, key))
    if not uri.endswith("/"):
        for name, size in found:
            if name == key:
                fetch_object(bucket, key, size, target)
                return target
    inside = [(name, size) for name, size in found if name.startswith(key + "/" if key else "")]
    files = [(name, size) for name, size in inside if not name.endswith("/")]
    if not files:
        raise RunnerError("inputs", "there is nothing at %s" % uri)
    jobs = []
    for name, size in files:
        relative = name[len(key) :].lstrip("/")
        _refuse_outside(uri, target, relative)
        jobs.append(lambda n=name, s=size, r=relative: fetch_object(bucket, n, s, os.path.join(target, r)))
    run_parallel(jobs)
    return target


def fetch_object(bucket, key, size, target):
    """Download one object under a temporary name, check its size, then rename: a part is never taken for the whole."""
    if os.path.isfile(target) and os.path.getsize(target) == size:
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    temporary = "%s.%d.part" % (target, os.getpid())

    def once():
        store().get(bucket, key, temporary)
        if os.path.getsize(temporary) != size:
            raise OSError("got %d of %d bytes" % (os.path.getsize(temporary), size))
        os.replace(temporary, target)

    patiently("inputs", "download of s3://%s/%s" % (bucket, key), once)


# -- inputs ------------------------------------------------------------------------------------------------------------


def fetch_with_tool(uri, target):
    """Fetch hf_model://, hf_dataset:// and ngc:// with the tools in the image."""
    import subprocess
    from shutil import which

    scheme, _, rest = uri.partition("://")
    if os.path.isdir(target):
        return _only_file(target)
    temporary = "%s.%d.part" % (target, os.getpid())
    os.makedirs(temporary)
    if scheme == "ngc":
        if not which("ngc"):
            raise RunnerError("inputs", "%s needs the ngc command in the image, and it has none" % uri)
        command = ["ngc", "registry", "model", "download-version", rest, "--dest", temporary]
    else:
        program = which("hf") or which("huggingface-cli")
        if not program:
            raise RunnerError(
                "inputs", "%s needs the hf command (package huggingface_hub) in the image, and it has none" % uri
            )
        repository, _, revision = rest.partition("@")
        parts = repository.strip("/").split("/")
        kind = "model" if scheme == "hf_model" else "dataset"
        command = [program, "download", "/".join(parts[:2]), *(["/".join(parts[2:])] if parts[2:] else [])]
        command += ["--repo-type", kind, "--local-dir", temporary] + (["--revision", revision] if revision else [])

    def once():
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise OSError(done.stdout.decode(errors="replace").strip()[-500:])

    patiently("inputs", "fetching %s" % uri, once)
    _rename_once(temporary, target)
    return _only_file(target)


def _only_file(folder):
    """The one weights file in `folder` when there is exactly one, else the folder: what a spec key wants."""
    found = [
        os.path.join(base, name)
        for base, _, names in os.walk(folder)
        for name in names
        if name.endswith(CHECKPOINTS) and "/." not in base[len(folder) :]
    ]
    return found[0] if len(found) == 1 else folder


def localize(uri, rule, folder):
    """The local path of one input, fetched into `folder` where it has to be."""
    kind, optional = rule.get("type"), rule.get("optional")
    scheme, marker, rest = uri.partition("://")
    if not marker or scheme in LOCAL_SCHEMES:
        path = "/" + rest.lstrip("/") if marker else uri
        if not os.path.exists(path) and kind != "local_glob" and not optional:
            raise RunnerError("inputs", "the input %s does not exist where the job runs" % path)
        if os.path.isdir(path):
            return path
    else:
        path = rule.get("container_path") or os.path.join(folder, safe_name(os.path.basename(uri.rstrip("/"))))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if scheme == "s3":
            try:
                fetch_s3(uri, path)
            except RunnerError as error:
                if not (optional and "there is nothing at" in str(error)):
                    raise
        elif scheme in TOOL_SCHEMES:
            path = fetch_with_tool(uri, path)
        else:
            raise RunnerError(
                "inputs", "%s: inputs can be paths, file://, s3://, hf_model://, hf_dataset://, ngc://" % uri
            )
    if kind == "file" or not is_archive(path) or not os.path.isfile(path):
        return path
    os.makedirs(folder, exist_ok=True)
    unpacked = unpack(path, os.path.join(folder, stem(path)))
    return os.path.dirname(unpacked) if rule.get("extract_to_parent") else unpacked


def selected(tree, key, rule, folder):
    """Fetch only the media files that an annotation names, for inputs that say so."""
    choice = rule["selective"]
    root, annotation = get_pointer(tree, key), get_pointer(tree, choice["annotation"])
    if not (isinstance(root, str) and root.startswith("s3://")) or not isinstance(annotation, str):
        return None
    local = localize(annotation, {"type": "file"}, os.path.join(folder, "annotation"))
    with open(local, encoding="utf-8") as file:
        text = file.read()
    records = (
        [json.loads(line) for line in text.splitlines() if line.strip()]
        if local.endswith(".jsonl")
        else json.loads(text)
    )
    names = sorted({value for pointer, value in walk(records) if _leaf(pointer) in choice.get("keys", ("file_name",))})
    base = root.rstrip("/")
    wanted = os.path.join(folder, "selected")
    for name in names:
        _refuse_outside(annotation, wanted, name)
    jobs = [lambda n=name: fetch_s3("%s/%s" % (base, n), os.path.join(wanted, n)) for name in names]
    run_parallel(jobs)
    return wanted


def _leaf(pointer):
    return pointer.rpartition(".")[2].partition("[")[0]


def fetch_inputs(plan, tree, work):
    """Make every declared input a local path, all at once, and write the paths into `tree`."""
    pending = []
    for key, rule in plan["inputs"].items():
        folder = os.path.join(work, "inputs", safe_name(key))
        if plan["mode"] == "passthrough":
            pending.append(lambda k=key, u=rule, f=folder: place(u, k, f))
            continue
        if rule.get("selective"):
            pending.append(lambda k=key, r=rule, f=folder: (k, selected(tree, k, r, f)))
            continue
        value = get_pointer(tree, key)
        values = value if isinstance(value, list) else [value]
        for index, uri in enumerate(values):
            if isinstance(uri, str) and uri not in UNSET:
                spot = "%s[%d]" % (key, index) if isinstance(value, list) else key
                inside = os.path.join(folder, str(index)) if isinstance(value, list) else folder
                pending.append(lambda s=spot, u=uri, r=rule, f=inside: (s, localize(u, r, f)))
    for pointer, value in list(walk(tree)):
        if isinstance(value, str) and value.partition("://")[0] in TOOL_SCHEMES and pointer not in plan["inputs"]:
            folder = os.path.join(work, "ptm", safe_name(pointer))
            pending.append(lambda p=pointer, u=value, f=folder: (p, localize(u, {}, f)))
    for pointer, path in run_parallel(pending):
        if path is not None and plan["mode"] != "passthrough":
            set_pointer(tree, pointer, path)


def place(uri, path, folder):
    """Make the input `uri` visible at the fixed `path` that a plain command expects."""
    local = localize(uri, {"container_path": path, "type": "file"}, folder)
    if os.path.abspath(local) != os.path.abspath(path) and not os.path.exists(path):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        os.symlink(os.path.abspath(local), path)
    return path, None


# -- outputs -----------------------------------------------------------------------------------------------------------


class Sync:
    """Carries files from where the command writes them to where they are kept; only what changed since last time."""

    def __init__(self, excludes):
        self.excludes = excludes
        self.routes = []  # (local path, destination)
        self.done = {}
        self.busy = None

    def add(self, local, destination):
        self.routes.append((local, destination))

    def _files(self, local):
        if os.path.isfile(local):
            yield local, os.path.basename(local)
        for base, _, names in os.walk(local):
            for name in names:
                path = os.path.join(base, name)
                relative = os.path.relpath(path, local)
                if not self._excluded(relative):
                    yield path, relative

    def _excluded(self, relative):
        from fnmatch import fnmatch

        for pattern in self.excludes:
            if pattern.endswith("/"):
                if ("/" + relative).find("/" + pattern) >= 0:
                    return True
            elif fnmatch(relative, pattern) or fnmatch(os.path.basename(relative), pattern):
                return True
        return False

    def once(self, settle=0.0):
        """Carry what changed. Files younger than `settle` seconds may still be being written and wait for next time."""
        jobs = []
        for local, destination in self.routes:
            for path, relative in self._files(local):
                try:
                    facts = os.stat(path)
                except OSError:
                    continue
                mark = (facts.st_size, facts.st_mtime_ns)
                if self.done.get((path, destination)) == mark or time.time() - facts.st_mtime < settle:
                    continue
                target = destination if os.path.isfile(local) else destination.rstrip("/") + "/" + relative
                jobs.append(lambda p=path, t=target, k=(path, destination), m=mark: self._carry(p, t, k, m))
        run_parallel(jobs)
        return len(jobs)

    def _carry(self, path, target, key, mark):
        def action():
            if target.startswith("s3://"):
                store().put(path, *split_s3(target))
            else:
                import shutil

                os.makedirs(os.path.dirname(target), exist_ok=True)
                temporary = "%s.%d.part" % (target, os.getpid())
                shutil.copy2(path, temporary)
                os.replace(temporary, target)

        patiently("outputs", "saving %s to %s" % (path, target), action)
        self.done[key] = mark

    def start(self, interval):
        """Carry outputs every `interval` seconds while the command runs."""
        if not self.routes or not interval:
            return
        import threading

        stop = threading.Event()

        def loop():
            while not stop.wait(interval):
                try:
                    self.once(settle=2.0)
                except (RunnerError, OSError) as error:
                    say("outputs not saved this time, next try in %g s: %s" % (interval, error))

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        self.busy = (stop, thread)

    def finish(self):
        """The last round, after the command ended."""
        if self.busy:
            self.busy[0].set()
            self.busy[1].join()
        if self.routes:
            self.once()


def results_base(key):
    """Where this job's results are kept, and whether that is a mount, s3 or the container's own disk."""
    root, bucket = os.environ.get("TAO_RESULTS_ROOT"), os.environ.get("S3_BUCKET_NAME")
    if root:
        return "mount", os.path.join(root, key)
    if bucket:
        return "s3", "s3://%s/results/%s" % (bucket, key)
    return "ephemeral", os.path.join("/results", key)


def choose_outputs(plan, tree, kind, base, work, sync):
    """Decide for each output where the command writes it and where it is kept; returns {key: kept where}."""
    kept = {}
    if plan["mode"] == "passthrough":
        for path in plan["outputs"]:
            # Two outputs with one basename must not meet: the second and later ones carry their whole path.
            name = safe_name(os.path.basename(path.rstrip("/")))
            name = name if name not in kept else safe_name(path.strip("/"))
            kept[name] = "%s/%s" % (base, name)
            if kind != "ephemeral" and os.path.abspath(path) != os.path.abspath(kept[name]):
                sync.add(os.path.abspath(path), kept[name])
        return kept
    for key, rule in plan["outputs"].items():
        value = get_pointer(tree, key)
        value = None if value in UNSET else value
        is_file = rule.get("type") == "file"
        if isinstance(value, str) and value.partition("://")[0] in LOCAL_SCHEMES and "://" in value:
            value = "/" + value.partition("://")[2].lstrip("/")
        if isinstance(value, str) and value.startswith("s3://"):
            local, destination = os.path.join(work, "outputs", safe_name(key)), value
            if is_file:
                local = os.path.join(local, os.path.basename(value.rstrip("/")))
        elif isinstance(value, str) and os.path.isabs(value):
            local = destination = value
        else:
            # A relative value says the name below the output's own folder; leaving that folder is refused.
            below = value or (_leaf(key) if is_file else "")
            _refuse_outside("output %s" % key, base if kind != "s3" else work, below or ".")
            destination = "/".join(filter(None, (base, safe_name(key), below if is_file or value != "." else "")))
            local = os.path.join(work, "outputs", safe_name(key), below) if kind == "s3" else destination
        kept[key] = destination
        os.makedirs(os.path.dirname(local) if is_file else local, exist_ok=True)
        if local != destination:
            sync.add(local, destination)
        set_pointer(tree, key, local)
    return kept


# -- resume ------------------------------------------------------------------------------------------------------------


def checkpoint_rank(name, modified):
    """Newest training position first: by epoch and step in the name, else by time."""
    import re

    found = [int(number) for number in re.findall(r"(?:epoch|step|iter)[_=-]?(\d+)", name.lower())]
    return (1, tuple(found), modified) if found else (0, (), modified)


def valid_checkpoint(path):
    """Whether a checkpoint file is whole, as far as its format tells: a job may have died while it wrote it."""
    import zipfile

    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError:
        return False
    if head[:2] == b"PK":  # torch.save and numpy write zip files: their directory stands at the very end
        return zipfile.is_zipfile(path)
    if head[:8] == b"\x89HDF\r\n\x1a\n" and len(head) == 64:  # the header of HDF5 says how long the file is
        start = 40 if head[8] < 2 else 28
        return size >= int.from_bytes(head[start : start + 8], "little")
    return size >= 64


def newest_checkpoint(folders):
    """The newest whole checkpoint in the job's own output folders, or None."""
    found = []
    for folder in folders:
        for base, names_below, names in os.walk(folder):
            names_below[:] = [name for name in names_below if name not in ("inputs", "ptm", "__pycache__")]
            found += [os.path.join(base, name) for name in names if name.endswith(CHECKPOINTS)]
    # A "latest" link or copy has no position in its name; it comes after those that have one.
    for path in sorted(found, key=lambda p: checkpoint_rank(os.path.basename(p), os.path.getmtime(p)), reverse=True):
        if valid_checkpoint(path):
            return path
        say("checkpoint %s is not whole, looking at the one before" % path)
    return None


def restore_checkpoint(destinations, work):
    """Fetch the newest whole checkpoint of an earlier attempt from s3, where this container's disk is new."""
    for destination in destinations:
        bucket, key = split_s3(destination)
        objects = [(name, size) for name, size in store().list(bucket, key + "/") if name.endswith(CHECKPOINTS)]
        objects.sort(key=lambda item: checkpoint_rank(os.path.basename(item[0]), 0), reverse=True)
        for name, size in objects[:5]:
            target = os.path.join(work, "resume", os.path.basename(name))
            fetch_object(bucket, name, size, target)
            if valid_checkpoint(target):
                return target
    return None


def resume(tree, kept, work):
    """Point empty resume keys at the newest checkpoint of this job's own earlier attempts; never at a pretrained one."""
    if os.environ.get("TAO_AUTO_RESUME", "1") == "0":
        return
    leaves = [pointer for pointer, value in walk(tree) if _leaf(pointer) == RESUME_LEAF and value in UNSET]
    folders = [place for place in kept.values() if not place.startswith("s3://") and os.path.isdir(place)]
    found = newest_checkpoint(folders)
    earlier = os.environ.get("TAO_ATTEMPT", "1") != "1" or os.environ.get("TAO_RESTARTS", "0") != "0"
    if not found and earlier:
        found = restore_checkpoint([place for place in kept.values() if place.startswith("s3://")], work)
    if found:
        say("resuming from %s" % found)
        os.environ["TAO_RESUME_CHECKPOINT"] = found
        for pointer in leaves:
            set_pointer(tree, pointer, found)


# -- the attempt's record, which is also the exit marker ---------------------------------------------------------------


class Record:
    """`attempts/<n>.json`: written at the start, and once more as the very last act. Its end is the exit marker."""

    def __init__(self, kind, base, work):
        rank = int(os.environ.get("NODE_RANK") or 0)
        attempt = os.environ.get("TAO_ATTEMPT", "1")
        name = "attempts/%s.json" % attempt if rank == 0 else "attempts/%s.rank%d.json" % (attempt, rank)
        self.remote = "%s/%s" % (base, name) if kind == "s3" else None
        self.path = os.path.join(work if kind == "s3" else base, name)
        self.rank = rank
        self.facts = {
            "name": os.environ.get("TAO_JOB_NAME", ""),
            "key": os.environ.get("TAO_JOB_ID", ""),
            "attempt": int(attempt),
            "native_id": os.environ.get("TAO_NATIVE_ID", ""),
            "restarts": int(os.environ.get("TAO_RESTARTS") or 0),
            "rank": rank,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "started": time.time(),
        }

    def write(self, **facts):
        self.facts.update(facts)
        # The padding reserves the room that the end needs, so that a full disk cannot swallow the exit marker.
        data = json.dumps(self.facts).encode()
        data += b" " * (4096 - len(data) % 4096)
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            write_atomic(self.path, data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not os.path.exists(self.path):
                raise
            with open(self.path, "r+b") as file:
                file.write(data)
        if self.remote:
            patiently("outputs", "saving %s" % self.remote, lambda: store().put(self.path, *split_s3(self.remote)))

    def end(self, code, ended_by, phase="command", error=""):
        try:
            facts = {"exit_code": code, "ended_by": ended_by, "phase": phase, "error": error[:1000]}
            self.write(ended=time.time(), **facts)
        except (OSError, RunnerError) as problem:
            say("the exit marker could not be written: %s" % problem)


# -- the command -------------------------------------------------------------------------------------------------------


def stop_reason():
    """Why we are being stopped: whoever cancels says so in a file first; a bare signal means we must make room."""
    try:
        with open(os.environ["TAO_STOP_FILE"], encoding="utf-8") as file:
            return file.read().strip() or "cancel"
    except (KeyError, OSError):
        return "preempt"


class Command:
    """The user's command as its own process group, with the signals that reach us passed on to all of it."""

    def __init__(self, time_limit, grace):
        self.pid = None
        self.ended_by = "none"
        self.time_limit = time_limit
        self.grace = grace
        self.stopping = False
        self.warned = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop(stop_reason()))
        signal.signal(signal.SIGUSR1, lambda *_: self._near_the_wall())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, lambda *_: self._alarm())

    def stop(self, reason):
        if self.stopping:
            return
        self.stopping = True
        self.ended_by = "time_limit" if self.warned and reason == "preempt" else reason
        if self.pid is None:
            raise Stopped
        say("stopping the command (%s)" % self.ended_by)
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        signal.setitimer(signal.ITIMER_REAL, self.grace)

    def _near_the_wall(self):
        self.warned = True
        say("the time limit is near")

    def _alarm(self):
        if not self.stopping:
            self.stop("time_limit")
        else:
            self._signal(signal.SIGKILL)

    def _signal(self, number):
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass

    def run(self, argv, keep_fds=()):
        """Run to the end; returns the exit code, 128+n where signal n ended it."""
        for descriptor in keep_fds:
            os.set_inheritable(descriptor, True)
        defaults = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGALRM, signal.SIGPIPE]
        if self.time_limit:
            signal.setitimer(signal.ITIMER_REAL, self.time_limit)
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, defaults)
            self.pid = os.posix_spawn(argv[0], argv, os.environ, setpgroup=0, setsigdef=defaults, setsigmask=[])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, defaults)
        while True:
            # The leader stays a zombie until its group is gone, so that the group's number cannot be reused meanwhile.
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            if ended is not None:
                break
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.stopping = True
        self._end_leftovers()
        return ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status

    def _end_leftovers(self):
        """Background children of a finished command must not go on unwatched."""
        self._signal(signal.SIGTERM)
        os.waitpid(self.pid, 0)
        deadline = time.monotonic() + 2
        while True:
            try:
                os.killpg(self.pid, 0 if time.monotonic() < deadline else signal.SIGKILL)
            except OSError:
                return
            if time.monotonic() > deadline + 2:
                return
            time.sleep(0.02)


def shell():
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def command_line(plan, tree, work):
    """The command as an argument list; argument values reach it as they are, without passing through a shell."""
    command = plan["command"]
    if plan["mode"] == "config":
        path = os.path.join(work, "spec.%s" % plan["config_format"])
        write_atomic(path, config_text(tree, plan["config_format"]).encode())
        return [shell(), "-c", command.replace("{config_path}", path)]
    if plan["mode"] == "passthrough":
        return [shell(), "-c", command]
    words = []
    for key, value in tree.items():
        if value is None or value is False:
            continue
        words.append("--" + key)
        if value is not True:
            words += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    words += ["--" + flag.lstrip("-") for flag in plan["flags"]]
    return [shell(), "-c", command + ' "$@"', "tao"] + words


# -- start to end ------------------------------------------------------------------------------------------------------


def take_secrets():
    """Read the secrets file into the environment and remove it, unless whoever made it keeps it for a requeue."""
    path = os.environ.pop("TAO_SECRETS_FILE", None)
    if path and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            os.environ.update(json.load(file))
        if os.environ.pop("TAO_SECRETS_KEEP", "0") != "1":
            os.unlink(path)
    for ours, theirs in (
        ("ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        ("SECRET_KEY", "AWS_SECRET_ACCESS_KEY"),
        ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL"),
        ("CLOUD_REGION", "AWS_REGION"),
    ):
        if os.environ.get(ours):
            os.environ.setdefault(theirs, os.environ[ours])


def work_folder(kind, base):
    """Where specs and fetched inputs go: what the platform names, else beside the results, else the own disk."""
    for folder in (
        os.environ.get("TAO_WORK_DIR"),
        base if kind != "s3" else None,
        "/results/" + os.path.basename(base),
    ):
        if folder:
            try:
                os.makedirs(folder, exist_ok=True)
                return folder
            except OSError:
                continue
    import tempfile

    return tempfile.mkdtemp(prefix="tao-")


def run(plan, keep_fds=()):
    """Everything from the plan to the exit code."""
    command = Command(plan.get("time_limit"), plan.get("grace", 20))
    take_secrets()
    key = os.environ.setdefault("TAO_JOB_ID", "job-%d" % os.getpid())
    kind, base = results_base(key)
    work = work_folder(kind, base)
    if kind == "ephemeral":
        base = work
        say("WARNING: neither TAO_RESULTS_ROOT nor S3_BUCKET_NAME is set: results stay in %s and end with it" % base)
    record = Record(kind, base, work)
    sync = Sync(plan["upload_excludes"])
    code, phase, problem = RUNNER_FAILED, "inputs", ""
    try:
        record.write()
        tree = plan["specs"] if plan["mode"] == "config" else plan["args"]
        if plan.get("workdir"):
            os.chdir(plan["workdir"])
        kept = choose_outputs(plan, tree, kind, base, work, sync)
        default = os.path.join(base if kind != "s3" else os.path.join(work, "outputs"), "results_dir")
        if plan["mode"] == "passthrough" and not kept:
            kept["results_dir"] = "%s/results_dir" % base
            os.makedirs(default, exist_ok=True)
            if kind == "s3":
                sync.add(default, kept["results_dir"])
        os.environ["TAO_RESULTS_DIR"] = default
        if kind == "mount":
            os.environ.setdefault("TAO_API_RESULTS_DIR", os.path.dirname(base))
        fetch_inputs(plan, tree, work)
        resume(tree, kept, work)
        phase = "spec"
        argv = command_line(plan, tree, work)
        record.write(outputs=kept)
        if record.rank:
            sync.routes.clear()  # every node sees the same outputs; one of them carries them
        sync.start(plan.get("sync_interval", 60))
        phase = "command"
        code = command.run(argv, keep_fds)
    except Stopped:
        code, problem = 128 + signal.SIGTERM, "stopped before the command was started"
    except (RunnerError, OSError, ValueError) as error:
        phase, problem = getattr(error, "phase", phase), str(error)
        say("ERROR in %s: %s" % (phase, problem))
    try:
        sync.finish()
    except (RunnerError, OSError) as error:
        say("ERROR: outputs were not all saved: %s" % error)
        if code == 0:
            code, phase, problem = RUNNER_FAILED, "outputs", str(error)
    if command.ended_by == "time_limit" and code == 0:
        command.ended_by = "none"  # it was warned or asked to stop, but finished its work
    record.end(code, command.ended_by, phase, problem)
    return code


def main(argv=None, keep_fds=()):
    """Run the plan in the file that the first argument names; leaves with the command's own exit code."""
    path = (argv or sys.argv[1:])[0]
    with open(path, encoding="utf-8") as file:
        plan = json.load(file)
    code = run(plan, keep_fds)
    os._exit(code)  # transfer threads of a stopped run must not hold up the end


if __name__ == "__main__":
    main()

"""What log lines mean: a table of signatures, most specific first, and a reader that finds the line that decided a run.

The order is the policy. What the kernel or the driver states as a fact comes first, then the run's own errors, then
what went wrong around it, because one rank's bug makes all other ranks report a broken network.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from prefect_tao.jobs.categories import Category

LINE_WIDTH = 300
EXCERPT_LINES = 30
_LINES_AFTER = 5
# Matching costs time by the square of a line's length; what a line is about stands near its start.
_MATCH_WIDTH = 1000
_LINES_READ = 2000


@dataclass(frozen=True)
class Signature:
    """A pattern and what it means. `retryable` overrides the category's policy where a line says more than that."""

    pattern: re.Pattern[str]
    category: Category
    cause: str
    remedy: str
    retryable: bool | None = None


@dataclass(frozen=True)
class Hit:
    """A line that a signature explains; `index` is its place in the log, None when it came from elsewhere."""

    signature: Signature
    line: str
    index: int | None = None


def _row(pattern: str, category: Category, cause: str, remedy: str, retryable: bool | None = None) -> Signature:
    return Signature(re.compile(pattern, re.IGNORECASE), category, cause, remedy, retryable)


_SHM = "Ask for a larger shared memory (shm, 8g or more), or lower the number of data-loader workers."
_NCCL = "Run again; if it repeats, set NCCL_DEBUG=INFO, exclude the node, and check gpu_ids against num_gpus."
_GPU = "Run again on another node and exclude this one; report it to the cluster's administrators."
_REGISTRY_LOGIN = "Refresh the registry key (for nvcr.io the NGC key) and the pull secret or login that carries it."
_DATASET = "Correct the path in the spec, and check that it is visible from where the job runs."

# Xid 13, 31, 43, 45, 68 and 69 are raised by faulty programs, the others by the hardware or its driver.
_HARDWARE_XID = r"(?!(?:13|31|43|45|68|69)\b)\d+\b"
# A kill alone does not tell who did it.
KILLED = "a person or the site killed it, or the host's memory ran out; nothing that was seen says which"
KILLED_REMEDY = (
    f"Where no one ended it, look at the node's memory and kernel log. {Category.OUT_OF_MEMORY.policy.remedy}"
)


# Facts that no program can bring about or misreport.
PLATFORM_FACTS: tuple[Signature, ...] = (
    _row(
        rf"\bXid \(PCI:[^)]*\): {_HARDWARE_XID}|(?-i:\bXid)(?: error)?:? {_HARDWARE_XID}",
        Category.GPU_FAILURE,
        "The driver reported a hardware fault of a GPU",
        _GPU,
    ),
    _row(r"\bGPU\b.*\bfallen off the bus\b", Category.GPU_FAILURE, "A GPU has fallen off the bus", _GPU),
    _row(
        r"\b(?:uncorrectable|double[- ]bit)\b.*\bECC\b|\bECC error\b.*\b(?:encountered|detected)\b",
        Category.GPU_FAILURE,
        "A GPU's memory has an uncorrectable error",
        _GPU,
    ),
    _row(
        r"Unable to determine the device handle for (?:gpu|device)",
        Category.GPU_FAILURE,
        "The driver lost a GPU",
        _GPU,
    ),
    _row(
        r"\boom[-_]kill\b|Out of memory: Kill(?:ed)? process|: tasks? [\d,-]+: Out Of Memory$",
        Category.OUT_OF_MEMORY,
        "The host's memory limit was exceeded and the kernel killed the process",
        "Ask for more memory, or lower the batch size, the number of data-loader workers or what is cached.",
    ),
    _row(
        r"InsufficientInstanceCapacity|\bInsufficient nvidia\.com/gpu\b|\b0/\d+ nodes are available",
        Category.CAPACITY,
        "The platform has no free machine of this shape",
        "Wait, or choose another shape, partition or node group.",
    ),
    _row(
        r"\bMount point not found\b",
        Category.NODE_FAILURE,
        "The node lacks a mount that it should have",
        "Run again on another node; report this one to the platform's administrators.",
    ),
)

# The run's own doing: the same input fails again, so trying again only wastes GPUs.
RUN_ERRORS: tuple[Signature, ...] = (
    _row(
        r"CUDA out of memory|OutOfMemoryError: CUDA|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaErrorMemoryAllocation|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|OOM when allocating tensor"
        r"|\b(?:nccl\w*|Cuda failure)\b.*\bout of memory\b",
        Category.PROGRAM,
        "The model and its batch do not fit into the GPU's memory",
        "Lower the batch size or the input size, use mixed precision or activation checkpointing, or use larger GPUs.",
    ),
    _row(
        r"\.cu:\d+:.*\bAssertion\b.*\bfailed|device-side assert",
        Category.PROGRAM,
        "A kernel refused its input, most often a label that is not below num_classes",
        "Set num_classes to at least the largest category id plus one, or correct the labels.",
    ),
    _row(
        r"\bnccl\w*\b.*\binvalid (?:usage|argument)\b|\bDuplicate GPU detected\b",
        Category.PROGRAM,
        "NCCL was called wrongly, most often two ranks on one GPU",
        "Make num_gpus, gpu_ids and the number of processes agree.",
    ),
    _row(
        r"\bnccl\b.*\bunhandled cuda error\b",
        Category.PROGRAM,
        "A CUDA call inside NCCL failed",
        "Run once with NCCL_DEBUG=INFO and read the CUDA failure that it names.",
    ),
    _row(
        r"\bBus error\b|insufficient shared memory|exitcode\s*:\s*-7\b|/dev/shm/.*No space left"
        r"|(?:unable to|could not)\b.*</?torch_\d+.*(?:No space|Cannot allocate)",
        Category.OUT_OF_MEMORY,
        "The shared memory of the container (/dev/shm) is too small",
        _SHM,
    ),
    _row(
        r"illegal memory access",
        Category.PROGRAM,
        "A kernel read or wrote outside of its memory",
        "Run once with CUDA_LAUNCH_BLOCKING=1 to find the operation, then correct its input or use another image.",
    ),
    _row(
        r"invalid device ordinal",
        Category.PROGRAM,
        "The program used a GPU number that the job does not have",
        "Make num_gpus and gpu_ids agree with the GPUs that were asked for.",
    ),
    _row(
        r"\bCUBLAS_STATUS_\w+|\bCUDNN_STATUS_(?!SUCCESS)\w+|CUDA error: (?:unspecified launch failure"
        r"|misaligned address|invalid argument|invalid configuration|an illegal instruction|no kernel image)",
        Category.PROGRAM,
        "CUDA refused the operation",
        "Check labels and tensor shapes, lower the batch size, and make sure that the image fits the GPU's generation.",
    ),
    _row(
        r"getpwuid\(\): uid not found",
        Category.PROGRAM,
        "The container runs as a user that it does not know",
        "Set USER and LOGNAME in the job's environment, or run as a user of the image.",
    ),
    _row(
        r"\bsize mismatch for\b|\bshapes cannot be multiplied\b|\bsize of tensor \w+ .*must match"
        r"|\bshape mismatch\b|Error\(s\) in loading state_dict|\bSizes of tensors must match\b",
        Category.PROGRAM,
        "Tensor shapes do not fit each other",
        "Make num_classes, input size and backbone agree with the checkpoint and the dataset.",
    ),
    _row(
        r"\[prefect-tao\] the image has no python3",
        Category.PROGRAM,
        "The image has no python3, which every job needs to start",
        "Use an image with python3 (3.8 or newer), or install it in this one.",
    ),
    _row(
        r"executable file not found in \$PATH|\bexec format error\b",
        Category.PROGRAM,
        "The image cannot run this command",
        "Check the command's spelling, and that the image holds it for this processor type.",
    ),
    _row(
        r"\bsegmentation fault\b|exitcode\s*:\s*-11\b",
        Category.PROGRAM,
        "The program crashed with a segmentation fault",
        "Use the image that belongs to this model, unmodified; run once with PYTHONFAULTHANDLER=1 to see where.",
    ),
)

# Missing things. Programs often look for these and go on without, so they count where they ended the run.
MISSING: tuple[Signature, ...] = (
    _row(
        r"\bModuleNotFoundError:|\bImportError:",
        Category.PROGRAM,
        "The image lacks a Python module that the program needs",
        "Use the image that belongs to this model, or install the module in it.",
    ),
    _row(
        r"\b(?:NoSuchKey|NoSuchBucket|EntryNotFoundError|RevisionNotFoundError)\b|\(404\) when calling"
        r"|\b404 Client Error\b|\bbucket does not exist\b",
        Category.PROGRAM,
        "An object that the spec names does not exist",
        "Correct the bucket, key or revision in the spec.",
    ),
    _row(
        r"\bFileNotFoundError\b(?!.*/tmp/pymp-)|\bNotADirectoryError:|^\S*python\S*: can't open file",
        Category.PROGRAM,
        "A file that the program needs is missing",
        f"{_DATASET} Detection models also need a validation set.",
    ),
)

# What went wrong around the run.
SURROUNDINGS: tuple[Signature, ...] = (
    _row(
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        Category.TIME_LIMIT,
        "The scheduler ended the job at its time limit",
        "",
    ),
    _row(r"CANCELLED AT \S+ DUE TO PREEMPTION", Category.PREEMPTED, "The scheduler preempted the job", ""),
    _row(r"CANCELLED AT \S+ DUE TO NODE FAIL", Category.NODE_FAILURE, "The scheduler lost a node of the job", ""),
    _row(
        r"Could not process JSON input",
        Category.CREDENTIALS,
        "Enroot found no credentials for the registry",
        "Install the enroot credentials file on the cluster, or renew the NGC key in it.",
    ),
    _row(
        r"\btoomanyrequests\b|\bpull rate limit\b|error code: 429\b|pull.*(?:TLS handshake timeout|i/o timeout)",
        Category.IMAGE,
        "The registry was too busy to give out the image",
        "Wait and try again; log in to the registry to raise its limit.",
    ),
    _row(
        r"\b(?:GatedRepoError|RepositoryNotFoundError)\b|\bgated repo\b|\bCannot access gated\b"
        r"|\b40[13] (?:Client Error|Unauthorized|Forbidden)\b.*\bhuggingface\.co\b",
        Category.CREDENTIALS,
        "Hugging Face refused the download",
        "Accept the model's licence on huggingface.co and give the job an HF_TOKEN that may read it.",
    ),
    _row(
        r"\b(?:AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|NoCredentialsError)\b"
        r"|Unable to locate credentials|\(40[13]\) when calling",
        Category.CREDENTIALS,
        "The object store refused the access key",
        "Check ACCESS_KEY, SECRET_KEY, the endpoint and what the key may do with this bucket.",
    ),
    _row(
        r"\bunauthorized: |pull access denied|access to the resource is denied|no basic auth credentials"
        r"|error code: 40[13]\b|\bnvcr\.io\b.*\b(?:401 Unauthorized|403 Forbidden)",
        Category.CREDENTIALS,
        "The registry refused to give out the image",
        _REGISTRY_LOGIN,
    ),
    _row(
        r"\b401 (?:Client Error|Unauthorized)|\b403 (?:Client Error|Forbidden)|\bapi_key not configured\b"
        r"|\binvalid api ?key\b",
        Category.CREDENTIALS,
        "A service refused the credentials",
        "Renew the credentials for the service that the line names, and give them to the job as a secret.",
    ),
    _row(
        r"\bmanifest unknown\b|\bmanifest for \S+ not found|failed to resolve reference.*: not found"
        r"|error code: 404\b|\binvalid reference format\b",
        Category.IMAGE,
        "The registry has no such image",
        "Correct the image's name or tag.",
        retryable=False,
    ),
    _row(
        r"pyxis: failed to import docker image",
        Category.IMAGE,
        "The image could not be imported",
        "Read the import's own messages; convert the image to a .sqsh file once and use that.",
        retryable=False,
    ),
    _row(
        r"No space left on device|Disk quota exceeded|inline_container\.cc.*unexpected pos",
        Category.STORAGE,
        "The disk or the quota is full",
        "Free space or raise the quota where results and temporary files go; keep fewer checkpoints.",
    ),
    _row(
        r"Read-only file system|Stale file handle|Transport endpoint is not connected"
        r"|transport endpoint shutdown|\[Errno 5\] Input/output error",
        Category.STORAGE,
        "The file system did not do its work",
        "Check the mount on the node; resume from the last checkpoint when the file system is well again.",
    ),
    _row(
        r"\[Errno 13\] Permission denied",
        Category.STORAGE,
        "The user of the container may not use this path",
        "Give that user the right to the path, or choose another results folder.",
    ),
    _row(
        r"\[Errno 12\]|\bCannot allocate memory\b|\bstd::bad_alloc\b|DefaultCPUAllocator: can't allocate memory"
        r"|\b_?(?:Array)?MemoryError\b",
        Category.OUT_OF_MEMORY,
        "The host had no memory left for the program",
        "Ask for more memory, or lower the batch size, the number of data-loader workers or what is cached.",
    ),
    _row(
        r"could not select device driver",
        Category.GPU_FAILURE,
        "The Docker host cannot give GPUs to containers",
        "Install the NVIDIA container toolkit on that host and restart Docker.",
        retryable=False,
    ),
    _row(
        r"NVIDIA driver\b.*\btoo old\b|CUDA driver version is insufficient",
        Category.GPU_FAILURE,
        "The node's driver is older than the image needs",
        "Use nodes with a newer driver, or an image for an older CUDA.",
    ),
    _row(
        r"no CUDA-capable device|\bcuInit\b.*\b(?:failed|error)\b|RuntimeError: (?:No CUDA GPUs|Found no NVIDIA driver)"
        r"|CUDA initialization: (?:CUDA unknown|Unexpected) error|No supported gpu backend found"
        r"|nvidia-container-cli: .*error",
        Category.GPU_FAILURE,
        "The program found no working GPU on the node",
        f"{_GPU} If every node says so, the job did not ask for a GPU.",
    ),
    _row(
        r"\bWatchdog caught collective operation timeout\b|\bNCCL watchdog thread terminated\b"
        r"|\bNCCL timeout\b|\bcollective operation timeout\b",
        Category.NETWORK,
        "The GPUs waited for each other until NCCL gave up",
        f"{_NCCL} NCCL_P2P_DISABLE=1 helps where GPUs of one machine hang.",
    ),
    _row(
        r"\bNCCL error\b|\bnccl(?:System|Remote|Internal)Error\b|\bNCCL WARN\b.*\b(?:NET/\w+|socket|connect\w*)\b"
        r"|\b(?:RDMA|InfiniBand|NET/IB|ibv_\w+|IBV_WC_\w+)\b.*\b(?:error|failed|failure|timed out|timeout)\b",
        Category.NETWORK,
        "The network between the GPUs failed",
        _NCCL,
    ),
    _row(
        r"\bRendezvous\w*(?:Timeout|Connection)\w*Error\b|\bTimed out after \d+ seconds waiting for clients\b"
        r"|\bsocket has timed out after\b|\bEADDRINUSE\b",
        Category.NETWORK,
        "The nodes did not find each other",
        "Run again; if it repeats, check that the nodes may reach MASTER_ADDR and that MASTER_PORT is free.",
    ),
    _row(
        r"Connection reset by peer|Connection timed out|Connection refused|Connection closed by peer"
        r"|No route to host|Network is unreachable|failure in name resolution|Name or service not known|no such host"
        r"|TLS handshake timeout|\bi/o timeout\b|\bRead timed out\b|\bMax retries exceeded\b|\bIncompleteRead\b"
        r"|\bSlowDown\b|\bEndpointConnectionError\b|Could not connect to the endpoint|\b429 Client Error\b"
        r"|\b50[0234] (?:Server Error|Bad Gateway|Service Unavailable)",
        Category.NETWORK,
        "A connection failed",
        "Run again; if it repeats, check from the node that the address in the line can be reached.",
    ),
    _row(
        r"\bDataLoader worker \(pid\S* [\d, ]+\) exited unexpectedly",
        Category.OUT_OF_MEMORY,
        "A data-loader worker died, most often because the shared memory (/dev/shm) is too small",
        _SHM,
    ),
    _row(
        r"^Killed$|: line \d+:\s+\d+ Killed\b|: tasks? [\d,-]+: Killed$|Signal 9 \(SIGKILL\) received by PID"
        r"|exitcode\s*:\s*-9\b|killed by signal: Killed",
        Category.UNKNOWN,
        f"A process of the job was killed: {KILLED}",
        KILLED_REMEDY,
    ),
)

SIGNATURES: tuple[Signature, ...] = PLATFORM_FACTS + RUN_ERRORS + MISSING + SURROUNDINGS

UNCAUGHT = _row(
    r"(?!)",
    Category.PROGRAM,
    "The program raised an exception",
    "Read the traceback in the log excerpt and correct the spec, the data or the program.",
)

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# Postgres refuses NUL in texts, and terminals obey the others.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# What launchers and log collectors put before each line: [rank0]: , 0: , [1,0]<stderr>: , a time stamp.
_PREFIX = re.compile(r"^(?:(?:\[(?:rank|default)?\d+\]:|\d+:(?= )|\[\d+,\d+\]<std\w+>:|\d{4}-\d\d-\d\dT[\d:.]+Z) ?)+")
_HEADER = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*?[a-z]\w*(?::|$)")
_CHAINED = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_SIDE_THREAD = re.compile(r"^(?:Exception ignored in|Exception in thread|--- Logging error ---|Error in atexit)")
# Lines by which a run says that it goes on. NCCL writes its fatal errors as warnings.
_SURVIVED = re.compile(
    r"(?<!NCCL )(?<!=)\bWARN(?:ING)?\b|(?<!=)\b(?:INFO|DEBUG)\b|^\[?W\d{4} |^\[W |\b[Rr]etrying\b|\b[Ww]ill retry\b"
)
# What only passes on that something else ended.
_ECHO = re.compile(
    r"^(?:\w+\.)*(?:ChildFailedError|CalledProcessError|SignalException|SIGTERMException|KeyboardInterrupt|SystemExit"
    r"|BrokenPipeError|ProcessExitedException|ProcessRaisedException)\b|killed by signal: Terminated|/tmp/pymp-"
    r"|^\S+ FAILED$|^Root Cause \(|\bfailed \(exitcode: -?\d+\) local_rank|: tasks? [\d,-]+: Exited with exit code"
    r"|^slurmstepd: error: \*\*\* .*\bCANCELLED\b"
)
_ERROR_WORD = re.compile(
    r"\b(?:error|exception|fatal|failed|failure|cannot|can't|invalid|denied|not found|no such|usage)\b|Error\b",
    re.IGNORECASE,
)
_FOOTER = re.compile(r"\bExecution status: FAIL\b")


def cut(line: str, width: int = LINE_WIDTH) -> str:
    """`line`, no longer than `width`."""
    return line if len(line) <= width else line[: width - 3] + "..."


def clean(text: str) -> list[str]:
    """The lines of `text` as a person saw them: progress bars at their last state, no colours, no control bytes."""
    return [_clean_line(line) for line in text.rstrip().split("\n")] if text.strip() else []


def _clean_line(line: str) -> str:
    states = [state for state in _ANSI.sub("", line).split("\r") if state.strip()]
    return _CONTROL.sub("", states[-1]).rstrip() if states else ""


def find_in_text(text: str, table: Sequence[Signature] = SIGNATURES) -> Hit | None:
    """The first signature of `table` that explains any line of `text`, a platform's or the runner's own message."""
    lines = clean(text)
    for signature in table:
        for line in lines:
            if signature.pattern.search(line[:_MATCH_WIDTH]):
                return Hit(signature, line.strip())
    return None


@dataclass(frozen=True)
class Log:
    """The end of a job's log, read once."""

    lines: tuple[str, ...]
    _bare: tuple[str, ...] = field(repr=False)

    @classmethod
    def read(cls, text: str) -> Log:
        """The log whose text is `text`."""
        lines = tuple(clean(text)[-_LINES_READ:])
        return cls(lines, tuple(_PREFIX.sub("", line)[:_MATCH_WIDTH] for line in lines))

    @property
    def says_failed(self) -> bool:
        """Whether the log carries the footer by which TAO reports a failure, which it may do with exit code 0."""
        return any(_FOOTER.search(line) for line in self._bare)

    def find(self) -> Hit | None:
        """The line that explains the failure best, or None when no line is more than an ordinary one."""
        return (
            self._search(PLATFORM_FACTS, range(len(self.lines)))
            or self._search(RUN_ERRORS, self._telling)
            or self._search(MISSING, self._fatal)
            or self._unexplained_exception()
            or self._search(SURROUNDINGS, self._fatal)
            or self._search(MISSING + SURROUNDINGS, self._telling)
        )

    def last_error(self) -> int | None:
        """The place of the last line that speaks of an error, else of the last line that is not blank."""
        own = [index for index, line in enumerate(self._bare) if line.strip() and not _FOOTER.search(line)]
        telling = set(self._telling)
        loud = [index for index in own if index in telling and _ERROR_WORD.search(self._bare[index])]
        first_hand = [index for index in loud if not _ECHO.search(self._bare[index])]
        return next((found[-1] for found in (first_hand, loud, own) if found), None)

    def excerpt(self, index: int | None) -> str:
        """About thirty lines around `index`, most of them before it, or the end of the log."""
        stop = len(self.lines) if index is None else min(len(self.lines), index + 1 + _LINES_AFTER)
        return "\n".join(cut(line) for line in self.lines[max(0, stop - EXCERPT_LINES) : stop])

    def quote(self, index: int) -> str:
        """The line at `index` without what launchers put before it."""
        return self._bare[index].strip()

    def _search(self, table: Sequence[Signature], places: Collection[int]) -> Hit | None:
        for signature in table:
            found = [index for index in places if signature.pattern.search(self._bare[index])]
            if found:
                return Hit(signature, self.quote(found[-1]), found[-1])
        return None

    def _unexplained_exception(self) -> Hit | None:
        """The last traceback that nothing around the run explains: then the program itself is at fault."""
        for chain in reversed(self._chains):
            if not self._search(SURROUNDINGS, chain):
                return Hit(UNCAUGHT, self.quote(chain[-1]), chain[-1])
        return None

    @cached_property
    def _telling(self) -> list[int]:
        """The places of lines by which a run can end: its exceptions, and whatever is not said to be survived."""
        handled = {last for _, last in self._tracebacks}
        return [
            index
            for index, line in enumerate(self._bare)
            if index in self._fatal or (index not in handled and not _SURVIVED.search(line))
        ]

    @cached_property
    def _fatal(self) -> list[int]:
        return [index for chain in self._chains for index in chain]

    @cached_property
    def _chains(self) -> list[list[int]]:
        """The last lines of tracebacks by which a run can end; those raised in handling one another belong together."""
        chains: list[list[int]] = []
        for header, last in self._tracebacks:
            before = self._before(header)
            if _SIDE_THREAD.search(before) or _ECHO.search(self._bare[last]):
                continue
            if chains and _CHAINED.search(before):
                # A cache that misses and a download that then fails: the exception that is understood counts.
                chains[-1] = [last] if self._search(SIGNATURES, [last]) else chains[-1] + [last]
            else:
                chains.append([last])
        return chains

    @cached_property
    def _tracebacks(self) -> list[tuple[int, int]]:
        headers = [index for index, line in enumerate(self._bare) if _HEADER in line]
        ends = [self._exception_after(header) for header in headers]
        return [(header, end) for header, end in zip(headers, ends, strict=True) if end is not None]

    def _exception_after(self, header: int) -> int | None:
        rest = range(header + 1, len(self._bare))
        return next((index for index in rest if _EXCEPTION.search(self._bare[index])), None)

    def _before(self, index: int) -> str:
        return next((line for line in reversed(self._bare[:index]) if line.strip()), "")

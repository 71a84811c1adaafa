"""What a verdict says about evidence as drivers really see it."""

from __future__ import annotations

import pytest

from prefect_tao.jobs.signatures import SIGNATURES, Log, clean
from prefect_tao.jobs.verdict import POLICIES, Category, ErrClass, Evidence, NodeEvent, Verdict, classify

C = Category
INFRASTRUCTURE = (C.CAPACITY, C.PREEMPTED, C.NODE_FAILURE, C.GPU_FAILURE, C.NETWORK)


def traceback(exception: str) -> str:
    return f'Traceback (most recent call last):\n  File "/opt/train.py", line 7, in main\n    step()\n{exception}'


def failed(log: str, exit_code: int = 1) -> Verdict:
    return classify(Evidence(exit_code=exit_code, native_state="FAILED", reason="NonZeroExitCode", log_tail=log))


CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total of 79.1 GiB."
CHILD_FAILED = traceback(
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "============================================================\ntrain.py FAILED"
)

LOGS = [
    # the run's own errors
    (traceback(CUDA_OOM), C.PROGRAM, "batch size"),
    (traceback("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB)"), C.PROGRAM, "batch"),
    (traceback("RuntimeError: CUDA error: out of memory"), C.PROGRAM, "batch size"),
    (
        traceback("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`"),
        C.PROGRAM,
        "batch",
    ),
    (traceback("RuntimeError: CUDA error: device-side assert triggered"), C.PROGRAM, "num_classes"),
    (
        "/opt/pytorch/aten/src/ATen/native/cuda/Loss.cu:242: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0],"
        " thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        + traceback("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        C.PROGRAM,
        "num_classes",
    ),
    (
        traceback("RuntimeError: CUDA error: an illegal memory access was encountered"),
        C.PROGRAM,
        "CUDA_LAUNCH_BLOCKING",
    ),
    (traceback("RuntimeError: CUDA error: invalid device ordinal"), C.PROGRAM, "gpu_ids"),
    (traceback("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."), C.PROGRAM, "image"),
    (traceback("RuntimeError: CUDA error: unspecified launch failure"), C.PROGRAM, "batch size"),
    (
        traceback("FileNotFoundError: [Errno 2] No such file or directory: '/data/coco/val.json'"),
        C.PROGRAM,
        "validation",
    ),
    (traceback("ModuleNotFoundError: No module named 'nvidia_tao_pytorch'"), C.PROGRAM, "image"),
    (
        traceback(
            "RuntimeError: Error(s) in loading state_dict for DINOModel:\n"
            "\tsize mismatch for class_embed.weight: copying a param with shape torch.Size([91, 256])"
        ),
        C.PROGRAM,
        "num_classes",
    ),
    (
        traceback("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x2048 and 512x10)"),
        C.PROGRAM,
        "num_classes",
    ),
    (traceback("KeyError: 'getpwuid(): uid not found: 30712'"), C.PROGRAM, "LOGNAME"),
    (
        traceback("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, invalid usage"),
        C.PROGRAM,
        "num_gpus",
    ),
    ("n1:77:99 [0] NCCL WARN Cuda failure 2 'out of memory'\n" + CHILD_FAILED, C.PROGRAM, "batch size"),
    (
        traceback(
            "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject operation"
        ),
        C.PROGRAM,
        "bucket",
    ),
    (traceback("AssertionError: torch.cuda.is_available() is False"), C.PROGRAM, "traceback"),
    (traceback("FileNotFoundError: gpu_config.yaml not found"), C.PROGRAM, "path"),
    (traceback("KeyError: 'sentiment'"), C.PROGRAM, "traceback"),
    ("Fatal Python error: Segmentation fault", C.PROGRAM, "PYTHONFAULTHANDLER"),
    ("NVRM: Xid (PCI:0000:3b:00): 13, pid=4242, name=python, Graphics Exception: ESR 0x504730", C.PROGRAM, ""),
    # memory of the host
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=77.batch.", C.OUT_OF_MEMORY, "memory"),
    ("[88.1] Memory cgroup out of memory: Killed process 4242 (python) total-vm:91GB", C.OUT_OF_MEMORY, "memory"),
    ("/tmp/run.sh: line 3:    42 Killed                  python train.py", C.UNKNOWN, "memory"),
    ("oom_kill event\n/tmp/run.sh: line 3:    42 Killed                  python train.py", C.OUT_OF_MEMORY, "memory"),
    (traceback("OSError: [Errno 12] Cannot allocate memory"), C.OUT_OF_MEMORY, "memory"),
    (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
        + traceback("RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error."),
        C.OUT_OF_MEMORY,
        "shm",
    ),
    (traceback("RuntimeError: DataLoader worker (pid(s) 118, 119) exited unexpectedly"), C.OUT_OF_MEMORY, "shm"),
    (
        "n1:7:9 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-kVx to 9637892 bytes,"
        " error: No space left on device (28)",
        C.OUT_OF_MEMORY,
        "shm",
    ),
    # storage
    (traceback("OSError: [Errno 28] No space left on device: '/results/model.pth'"), C.STORAGE, "space"),
    (
        traceback("OSError: [Errno 122] Disk quota exceeded")
        + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + traceback("RuntimeError: could not finish the archive"),
        C.STORAGE,
        "quota",
    ),
    (traceback("PermissionError: [Errno 13] Permission denied: '/results/train'"), C.STORAGE, "right"),
    # GPUs
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=0, GPU has fallen off the bus.", C.GPU_FAILURE, "another node"),
    (
        "NVRM: Xid (PCI:0000:3b:00): 48, pid=9\n" + traceback("RuntimeError: CUDA error: an illegal memory access"),
        C.GPU_FAILURE,
        "exclude",
    ),
    (traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered"), C.GPU_FAILURE, "exclude"),
    ("Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error", C.GPU_FAILURE, "exclude"),
    (
        traceback("RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."),
        C.GPU_FAILURE,
        "newer driver",
    ),
    ("CUDA driver version is insufficient for CUDA runtime version", C.GPU_FAILURE, "newer driver"),
    (traceback("RuntimeError: CUDA error: no CUDA-capable device is detected"), C.GPU_FAILURE, "another node"),
    ("[E] cuInit(0) failed with error 802", C.GPU_FAILURE, "another node"),
    # the network
    (
        "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(Seq=9)\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        C.NETWORK,
        "NCCL_P2P_DISABLE",
    ),
    (
        "n1:7:9 [3] NCCL WARN NET/IB : Got completion from peer 10.0.0.4<47> with status=12 opcode=0 vendor err 129",
        C.NETWORK,
        "NCCL_DEBUG",
    ),
    (
        traceback(
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled system error"
            " (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5"
        ),
        C.NETWORK,
        "NCCL_DEBUG",
    ),
    (traceback("ConnectionResetError: [Errno 104] Connection reset by peer"), C.NETWORK, "reached"),
    (
        traceback(
            "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined."
        ),
        C.NETWORK,
        "MASTER_ADDR",
    ),
    (
        traceback("urllib3.exceptions.NameResolutionError: Failed to resolve 'hf.co' ([Errno -3] Temporary failure in")
        + " name resolution)\n\nThe above exception was the direct cause of the following exception:\n\n"
        + traceback("OSError: We couldn't connect to 'https://hf.co' to load this file"),
        C.NETWORK,
        "reached",
    ),
    # credentials and images
    (
        "pyxis: failed to import docker image\npyxis: printing enroot log file:\npyxis:     [ERROR] Could not process"
        " JSON input",
        C.CREDENTIALS,
        "NGC key",
    ),
    (
        "pyxis:     [ERROR] URL https://nvcr.io/proxy_auth returned error code: 401 Unauthorized",
        C.CREDENTIALS,
        "NGC key",
    ),
    (
        traceback("requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/nvidia/x")
        + "\n\nThe above exception was the direct cause of the following exception:\n\n"
        + traceback("huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-67)"),
        C.CREDENTIALS,
        "HF_TOKEN",
    ),
    (
        traceback(
            "botocore.exceptions.ClientError: An error occurred (SignatureDoesNotMatch) when calling ListObjectsV2"
        ),
        C.CREDENTIALS,
        "SECRET_KEY",
    ),
    (traceback("wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login"), C.CREDENTIALS, "secret"),
    ("Error response from daemon: manifest for nvcr.io/nvidia/tao:9.9 not found: manifest unknown", C.IMAGE, "tag"),
    # the scheduler's own words in the log
    (
        "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2025-05-01T10:00:00 DUE TO TIME LIMIT ***",
        C.TIME_LIMIT,
        "checkpoint",
    ),
]


@pytest.mark.parametrize(("log", "category", "advice"), LOGS)
def test_a_log_tells_the_category_and_what_to_do(log: str, category: Category, advice: str) -> None:
    verdict = failed(f"Epoch 3: 100%|####| 10/10\n{log}\n")
    assert verdict.category is category, verdict.cause
    assert advice in verdict.remedy
    assert verdict.err_class is POLICIES[category].err_class


NOT_INFRASTRUCTURE = [
    "Validation error rate: 0.213, word error 0.11\nTime to first token 3 s; sentiment accuracy 0.8",
    "[INFO] GPU temperature 61 C, ECC error counter 0, InfiniBand error counters 0",
    "n1:7:9 [0] NCCL INFO NET/IB : No device found.\nn1:7:9 [0] NCCL INFO Bootstrap : Using eth0",
    "WARNING: upload failed: Connection reset by peer, retrying in 3 s\nstopping early",
    "[W1023 12:00:00.1 socket.cpp:697] [c10d] The client socket has failed to connect to [n2]:29500 (errno: 97)",
    "torch_memory_fraction: 0.9\nretry_on_network_error: true\nxid: 79\nmax_time_limit: 12",
    "Killed 3 stale tensorboard processes before the start",
    "Timeout of the collective operations is 1800 s",
]


@pytest.mark.parametrize("log", NOT_INFRASTRUCTURE)
def test_ordinary_lines_of_a_failed_run_leave_it_a_program_error(log: str) -> None:
    verdict = failed(log)
    assert verdict.category is C.PROGRAM, verdict.cause
    assert not verdict.retryable


def test_a_bug_in_one_rank_outranks_the_broken_network_of_the_others() -> None:
    others = "[rank1]: " + traceback("DistBackendError: NCCL error: remote process exited").replace("\n", "\n[rank1]: ")
    culprit = "[rank0]: " + traceback("ValueError: num_queries must be positive").replace("\n", "\n[rank0]: ")
    verdict = failed(f"{culprit}\n{others}\nConnection reset by peer\n{CHILD_FAILED}")
    assert verdict.category is C.PROGRAM
    assert 'ValueError: num_queries must be positive"' in verdict.cause


def test_a_survived_warning_does_not_hide_the_exception_that_ended_the_run() -> None:
    log = "Connection timed out\nXidentity loaded\n" + traceback("ValueError: unknown optimizer 'adamz'")
    assert failed(log).cause == "The program raised an exception: \"ValueError: unknown optimizer 'adamz'\""


def test_a_module_that_the_program_can_do_without_is_not_the_cause() -> None:
    log = "ModuleNotFoundError: No module named 'apex'\n" + traceback("ValueError: bad anchor")
    assert "bad anchor" in failed(log).cause


def test_of_exceptions_raised_in_handling_one_another_the_one_that_is_understood_counts() -> None:
    miss = traceback("FileNotFoundError: [Errno 2] No such file or directory: '/root/.cache/resnet.pth'")
    lost = traceback("urllib.error.URLError: <urlopen error [Errno 110] Connection timed out>")
    log = f"{miss}\n\nDuring handling of the above exception, another exception occurred:\n\n{lost}"
    assert failed(log).category is C.NETWORK


def test_a_crashed_kernel_that_the_nccl_watchdog_reports_is_a_program_error() -> None:
    log = "[Rank 0] NCCL watchdog thread terminated with exception: CUDA error: unspecified launch failure"
    assert failed(log, exit_code=134).category is C.PROGRAM


def test_what_an_earlier_run_of_a_requeued_job_left_in_the_log_does_not_decide() -> None:
    old = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2025-05-01T10:00:00 DUE TO PREEMPTION ***"
    assert failed(f"{old}\n{traceback('ValueError: bad anchor')}").category is C.PROGRAM


def test_an_exception_in_a_side_thread_does_not_decide() -> None:
    log = "Exception in thread Thread-3:\n" + traceback("FileNotFoundError: [Errno 2] gone") + "\nfatal: bad spec"
    assert "fatal: bad spec" in failed(log).cause


def test_launchers_that_only_pass_on_a_failure_are_not_its_cause() -> None:
    launchers = f"{CHILD_FAILED}\nsrun: error: n1: task 0: Exited with exit code 1\nExecution status: FAIL"
    verdict = failed(f"Error: key train.foo is not known\n{launchers}")
    assert verdict.category is C.PROGRAM
    assert "train.foo" in verdict.cause


def test_a_child_killed_under_torchrun_is_a_memory_verdict_only_with_evidence() -> None:
    log = f"{CHILD_FAILED}\n  exitcode  : -9 (pid: 41)\n  traceback : Signal 9 (SIGKILL) received by PID 41"
    assert "nothing that was seen says which" in failed(log).cause
    assert (
        failed(f"slurmstepd: error: Detected 1 oom_kill event in StepId=77.batch.\n{log}").category is C.OUT_OF_MEMORY
    )


ENDINGS = [
    ("time_limit", C.TIME_LIMIT),
    ("cancel", C.CANCELED),
    ("preempt", C.PREEMPTED),
]


@pytest.mark.parametrize(("ended_by", "category"), ENDINGS)
def test_why_the_command_was_stopped_outranks_everything_else(ended_by: str, category: Category) -> None:
    seen = {"exit_code": 137, "native_state": "NODE_FAIL", "oom_killed": True, "log_tail": traceback(CUDA_OOM)}
    verdict = classify(Evidence.model_validate({**seen, "ended_by": ended_by}))
    assert verdict.category is category
    assert "CUDA out of memory" in verdict.log_excerpt


PLATFORM_WORDS = [
    ("NODE_FAIL", "NodeDown", C.NODE_FAILURE),
    ("BOOT_FAIL", "", C.NODE_FAILURE),
    ("PREEMPTED", "", C.PREEMPTED),
    ("REVOKED", "", C.PREEMPTED),
    ("Failed", "Evicted: The node was low on resource: memory.", C.PREEMPTED),
    ("Failed", "Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 10Gi.", C.STORAGE),
    ("TIMEOUT", "TimeLimit", C.TIME_LIMIT),
    ("DEADLINE", "", C.TIME_LIMIT),
    ("Failed", "DeadlineExceeded", C.TIME_LIMIT),
    ("OUT_OF_MEMORY", "OutOfMemory", C.OUT_OF_MEMORY),
    ("Failed", "OOMKilled", C.OUT_OF_MEMORY),
    ("Failed", "OutOfmemory: Node didn't have enough resource: memory", C.CAPACITY),
    ("CANCELLED by 1000", "None", C.CANCELED),
    ("Pending", "ImagePullBackOff", C.IMAGE),
    ("exited", 'could not select device driver "" with capabilities: [[gpu]]', C.GPU_FAILURE),
    ("created", 'exec: "trian": executable file not found in $PATH', C.PROGRAM),
]


@pytest.mark.parametrize(("state", "reason", "category"), PLATFORM_WORDS)
def test_the_platform_s_own_words_decide_and_are_quoted(state: str, reason: str, category: Category) -> None:
    verdict = classify(Evidence(exit_code=1, native_state=state, reason=reason, log_tail="ValueError: old news"))
    assert verdict.category is category
    assert (reason or state) in verdict.cause


def test_platform_words_count_only_as_whole_words() -> None:
    evidence = Evidence(exit_code=1, native_state="FAILED", reason="NonTIMEOUTReason", log_tail="bad spec")
    assert classify(evidence).category is C.PROGRAM


def test_an_image_without_python_is_told_with_what_to_do_about_it() -> None:
    log = "[prefect-tao] the image has no python3, which the job needs\n"
    verdict = classify(Evidence(exit_code=127, native_state="exited", log_tail=log))
    assert "no python3" in verdict.cause
    assert verdict.remedy.startswith("Use an image with python3")


PULLS = [
    ("ErrImagePull: failed to authorize: unexpected status: 401 Unauthorized", C.CREDENTIALS, False),
    ("ErrImagePull: pull access denied for acme/net, repository does not exist", C.CREDENTIALS, False),
    ('ErrImagePull: failed to resolve reference "nvcr.io/a:b": nvcr.io/a:b: not found', C.IMAGE, False),
    ("ErrImagePull: manifest unknown", C.IMAGE, False),
    ("ImagePullBackOff: Back-off pulling image nvcr.io/a:b", C.IMAGE, False),
    ("ErrImagePull: toomanyrequests: You have reached your pull rate limit", C.IMAGE, True),
    ('ErrImagePull: Get "https://nvcr.io/v2/": net/http: TLS handshake timeout', C.IMAGE, True),
    ("ErrImagePull: dial tcp 10.0.0.1:443: i/o timeout", C.IMAGE, True),
]


@pytest.mark.parametrize(("reason", "category", "retryable"), PULLS)
def test_a_pull_is_tried_again_only_when_the_trouble_may_pass(reason: str, category: Category, retryable: bool) -> None:
    verdict = classify(Evidence(native_state="Pending", reason=reason))
    assert (verdict.category, verdict.retryable) == (category, retryable)
    assert verdict.allows_retry(2, progressed=False) is retryable
    assert not verdict.allows_retry(3, progressed=False)


PHASES = [
    ("inputs", "An error occurred (403) when calling the HeadObject operation: Forbidden", C.CREDENTIALS),
    ("inputs", "An error occurred (NoSuchKey) when calling the GetObject operation", C.PROGRAM),
    ("inputs", "input train.images: /lustre/coco does not exist", C.PROGRAM),
    ("inputs", "FileNotFoundError: [Errno 2] No such file or directory: '/lustre/coco'", C.PROGRAM),
    ("inputs", "EndpointConnectionError: Could not connect to the endpoint URL", C.NETWORK),
    ("inputs", "there is nothing at s3://data/coco/", C.PROGRAM),
    ("inputs", "s3:// needs boto3 or the aws command in the image, and it has neither", C.PROGRAM),
    ("inputs", "a.zip holds a link (x); links are refused", C.PROGRAM),
    ("inputs", "size of a.tar is 17 bytes, 90 were announced", C.STORAGE),
    ("outputs", "OSError: [Errno 28] No space left on device", C.STORAGE),
    ("outputs", "An error occurred (AccessDenied) when calling the PutObject operation", C.CREDENTIALS),
    ("outputs", "An error occurred (503) when calling PutObject: 503 Service Unavailable", C.NETWORK),
    ("outputs", "[Errno 13] Permission denied: '/results/k'", C.STORAGE),
    ("spec", "[Errno 122] Disk quota exceeded: '/results/spec.yaml'", C.STORAGE),
    ("spec", "cannot write YAML: unsupported value", C.PROGRAM),
]


@pytest.mark.parametrize(("phase", "error", "category"), PHASES)
def test_a_failure_of_the_runner_itself_is_judged_by_its_own_message(phase: str, error: str, category: C) -> None:
    verdict = classify(Evidence(exit_code=1, phase=phase, runner_error=error, log_tail=traceback(CUDA_OOM)))
    assert verdict.category is category
    assert error in verdict.cause


def test_a_runner_that_was_stopped_while_it_fetched_inputs_did_not_fail_at_that() -> None:
    evidence = Evidence(exit_code=143, phase="inputs", runner_error="stopped before the command was started")
    assert classify(evidence).category is C.PREEMPTED


def test_a_command_that_could_not_be_started_is_a_program_error() -> None:
    error = "[Errno 2] No such file or directory: 'trian'"
    verdict = classify(Evidence(exit_code=70, phase="command", runner_error=error))
    assert verdict.category is C.PROGRAM
    assert error in verdict.cause


SIGNAL_CODES = [
    (137, C.UNKNOWN, "memory"),
    (-9, C.UNKNOWN, "memory"),
    (139, C.PROGRAM, "segmentation fault"),
    (143, C.PREEMPTED, "outside"),
    (135, C.OUT_OF_MEMORY, "/dev/shm"),
    (134, C.PROGRAM, "SIGABRT"),
    (138, C.UNKNOWN, "SIGUSR1"),
]


@pytest.mark.parametrize(("code", "category", "word"), SIGNAL_CODES)
def test_without_better_evidence_a_signal_decides(code: int, category: Category, word: str) -> None:
    verdict = failed("Epoch 3: loss 0.4", exit_code=code)
    assert verdict.category is category
    assert word in verdict.cause


def test_exit_137_is_out_of_memory_only_with_evidence() -> None:
    assert "nothing that was seen says which" in failed("", exit_code=137).cause
    assert failed("oom_kill event", exit_code=137).category is C.OUT_OF_MEMORY
    assert classify(Evidence(exit_code=137, oom_killed=True)).category is C.OUT_OF_MEMORY


def test_a_terminated_run_is_not_a_program_error_because_its_launcher_says_so() -> None:
    log = traceback("torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15")
    assert failed(log, exit_code=143).category is C.PREEMPTED


def test_a_plain_failure_quotes_the_last_error_line() -> None:
    verdict = failed("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --lrr\n\nbye", exit_code=2)
    assert verdict.category is C.PROGRAM
    assert verdict.cause == (
        'The command ended with exit code 2; it last said: "train.py: error: unrecognized arguments: --lrr"'
    )


def test_a_missing_command_names_the_image() -> None:
    assert "image" in failed("bash: visual_changenet: command not found", exit_code=127).remedy


def test_a_failure_without_a_log_says_so() -> None:
    assert failed("").cause == "The command ended with exit code 1 and left no log."


def test_no_evidence_is_unknown_and_never_retried() -> None:
    verdict = classify(Evidence())
    assert (verdict.category, verdict.err_class) == (C.UNKNOWN, ErrClass.ERR_UNKNOWN)
    assert not verdict.allows_retry(0, progressed=True)


def test_exit_0_alone_accuses_nobody_but_the_failure_footer_does() -> None:
    assert classify(Evidence(exit_code=0, log_tail="done")).category is C.UNKNOWN
    assert classify(Evidence(exit_code=0, log_tail="bad key\nExecution status: FAIL")).category is C.PROGRAM


def test_a_node_event_explains_an_end_that_the_log_does_not() -> None:
    xid = NodeEvent(name="GPUXid", message="Xid 79 on GPU 3", node="n1")
    assert classify(Evidence(exit_code=134, node_events=(xid,))).category is C.GPU_FAILURE
    lost = NodeEvent(name="NodeNotReady", message="Node n1 status is now: NodeNotReady")
    assert classify(Evidence(exit_code=137, node_events=(lost,))).category is C.NODE_FAILURE
    assert (
        classify(Evidence(exit_code=1, node_events=(lost,), log_tail=traceback("KeyError: 'x'"))).category is C.PROGRAM
    )


def test_having_waited_for_a_machine_is_not_why_a_job_failed() -> None:
    event = NodeEvent(name="FailedScheduling", message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    assert classify(Evidence(exit_code=1, node_events=(event,), log_tail="bad spec")).category is C.PROGRAM


# policy


@pytest.mark.parametrize("category", list(Category))
def test_every_category_has_a_policy_with_a_remedy(category: Category) -> None:
    policy = POLICIES[category]
    assert policy.remedy
    assert policy.retryable == (policy.budget > 0)
    assert policy.retryable == (category in (*INFRASTRUCTURE, C.STUCK, C.IMAGE, C.TIME_LIMIT))


def test_every_signature_of_a_retried_category_is_about_the_surroundings_of_the_run() -> None:
    assert not any(row.pattern.search(CUDA_OOM) for row in SIGNATURES if POLICIES[row.category].retryable)
    assert all(row.remedy or POLICIES[row.category].remedy for row in SIGNATURES)


@pytest.mark.parametrize("category", INFRASTRUCTURE)
def test_infrastructure_failures_get_ten_retries_with_growing_pauses(category: Category) -> None:
    verdict = verdict_of(category)
    assert verdict.allows_retry(9, progressed=False)
    assert not verdict.allows_retry(10, progressed=True)
    pauses = [verdict.delay(n) for n in range(10)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[1] <= pauses[-1] == 600


def verdict_of(category: Category) -> Verdict:
    policy = POLICIES[category]
    return Verdict(category=category, err_class=policy.err_class, cause="x", remedy="y", retryable=policy.retryable)


def test_a_time_limit_is_crossed_only_with_checkpoint_progress() -> None:
    verdict = classify(Evidence(native_state="TIMEOUT"))
    assert verdict.allows_retry(5, progressed=True)
    assert not verdict.allows_retry(0, progressed=False)


def test_pauses_stay_within_ten_minutes_whatever_the_count() -> None:
    assert verdict_of(C.CAPACITY).delay(100_000) == 600
    assert verdict_of(C.PROGRAM).delay(3) == 0


# form


def test_a_verdict_survives_json() -> None:
    event = NodeEvent(name="Evicted", message="low on memory", node="n1")
    verdict = classify(Evidence(exit_code=1, log_tail=traceback(CUDA_OOM), node_events=(event,)))
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_a_verdict_can_be_read_as_a_failure_analysis() -> None:
    event = NodeEvent(name="OOM", message="killed")
    analysis = classify(Evidence(oom_killed=True, node_events=(event,))).as_failure_analysis()
    assert analysis["err_class"] == "ERR_PROGRAM"
    assert analysis["category"] == "out_of_memory"
    assert analysis["job_failure_by_node_event"] == [{"node_event_name": "OOM", "message": "killed"}]
    assert analysis["suggestion"]
    assert analysis["cause"]


def test_the_excerpt_shows_the_traceback_and_not_the_noise_after_it() -> None:
    before = "\n".join(f"step {n}" for n in range(200))
    after = "\n".join(f"shutting down {n}" for n in range(200))
    excerpt = failed(f"{before}\n{traceback(CUDA_OOM)}\n{after}").log_excerpt.split("\n")
    assert len(excerpt) == 30
    assert CUDA_OOM in excerpt
    assert "Traceback (most recent call last):" in excerpt
    assert "shutting down 9" not in excerpt


def test_progress_bars_colours_and_control_bytes_are_cleaned_away() -> None:
    text = "Epoch 1:  0%|  |\rEpoch 1: 50%|# |\rEpoch 1: 100%|##|\r\n\x1b[31mValueError: no\x00\x07pe\x1b[0m\r\n"
    assert clean(text) == ["Epoch 1: 100%|##|", "ValueError: nope"]


def test_long_lines_are_cut() -> None:
    verdict = failed("error: " + "x" * 5000)
    assert max(map(len, verdict.log_excerpt.split("\n"))) == 300
    assert len(verdict.cause) < 300


@pytest.mark.timeout(30)
def test_a_large_log_of_nasty_lines_is_judged_in_time() -> None:
    line = "Epoch 1: 50%|#####     | 17/34 [00:01<00:01, NCCL GPU ECC error rate nccl out of"
    log = Log.read("\n".join([line * 1000] * 500 + ["Traceback (most recent call last):"] * 50))
    assert log.find() is None

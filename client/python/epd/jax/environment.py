"""Every environment variable that epd.jax reads: ``help(epd.jax.environment)``.

========================  ================================================================================
``EPD_SOCKET``            path of the daemon's attach socket; default: the node's ``/run/epd/epd.sock``, else this
                          user's private one
``EPD_SERVER_UID``        a uid that the daemon may have, besides this user's, root's and those of ``/etc/epd/client.conf``: for
                          containers; it trusts whoever sets it; read by the C library
``EPD_AUTOSTART``         ``0``: never start a private daemon when none is found
``XDG_RUNTIME_DIR``       an absolute path of a folder of this user: the private daemon's socket and log lie in ``epd`` there; default:
                          in ``/tmp/epd-UID``; a folder that is missing, or another user's, is an error, not a reason
                          to look elsewhere; read by the C library
``EPD_PROGRAM``           the ``epd`` to start; default: the one installed with this package; it belongs to
                          this user or root, and others cannot write to it
``EPD_JOB``               name of the job; processes of one job find each other, so runs at the same time need different ones; default:
                          the words of the scheduler and the launcher for this launch (a Slurm step, mpirun's, torchrun's), with a
                          nonce that JAX's distributed key-value store shares
``EPD_INSTANCE``          which run of the job this is; default: that nonce, where there is a store. For processes that belong
                          together and do not all share one store: the same word in all of them
``EPD_TENANT``            which of several jobs that share one group this is: jobs of the same ``EPD_JOB`` and other
                          tenants share the groups' ranks and memory, and exchange nothing; read by the C library
``EPD_EXECUTOR``          who moves the rows, ``client`` or ``worker`` (the daemon's); default: the daemon's choice
``EPD_BACKEND``           what moves the rows of groups whose ranks are on GPUs, ``cuda`` (default) or ``nccl_ep``; groups on
                          CPUs have no choice
``EPD_COMMAND_BUFFERS``   ``off``: XLA takes no operation on a GPU into its command buffers (CUDA graphs), and calls each; default ``on``
``EPD_WARN_AFTER``        seconds until a living but absent rank is named in the daemon's log; default 20
``EPD_ABSENT_TIMEOUT``    ... and until that fails the operation; default 600
``EPD_UNDECIDED_TIMEOUT`` seconds from the admission of an operation to its outcome; default 30
``EPD_FORM_TIMEOUT``      seconds for all ranks to come to ``ep_bootstrap``; default 300
``EPD_RECONNECT_TIMEOUT`` seconds that calls wait for a daemon that has gone; default ``EPD_FORM_TIMEOUT``; ``0``: they fail
``EPD_KEEP_FREED_MIB``    how much freed memory a process whose ranks are on CPUs keeps for its next results, in MiB, instead of giving it
                          back to the kernel after each step; default 256; ``0``: as glibc does it, as where
                          ``GLIBC_TUNABLES`` or a ``MALLOC_`` variable says something of the heap
``EPD_STACKS``            ``yes``: on SIGUSR2 from its own user the process writes what its threads do, for ``epctl support-archive``;
                          read by the C library, which takes the signal if the program does not
``EPD_DIRECT``            ``off``: all rows go through the worker; read by the C library
``EPD_SPIN_US``           microseconds that a wait spins before it sleeps; default: 50 where there is a core to spare; read by the C library
``EPD_JAX_LIBRARY``       path of another ``libepd_jax.so``, for work on epd itself
========================  ================================================================================

``EPD_COMMAND_BUFFERS=off`` must go with ``WHILE`` or ``CONDITIONAL`` in ``--xla_gpu_enable_command_buffer``. Joining with ranks on GPUs refuses them
otherwise where ``XLA_FLAGS`` says it, or the file that it names; what ``jax.jit`` is given as ``compiler_options`` nobody sees: do not give it there.

CUDA reads ``CUDA_DEVICE_MAX_CONNECTIONS`` when a process begins to use its GPUs. Start programs with 32, as epd's workers start
themselves: with the default, 8, more streams than hardware queues wait for each other, and one that waits for other ranks may hold up
the stream that they wait for.

Ranks of a group must agree on the executor, the backend and the four times.

XLA has a deadline of its own: in a process with several CPU devices it ends the process 40 seconds
after one of its own collectives began to wait for a device that is held up. To let a rank be absent
for longer there, set ``XLA_FLAGS=--xla_cpu_collective_call_terminate_timeout_seconds=700``.
"""

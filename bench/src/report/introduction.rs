//! The text above the measured part of a new page: how it is measured.

/// For the loads with a PROXY header.
pub(super) const PROXY: &str = "\
# Benchmarks

truepeer beside its peers. `make bench` repeats all of it on your machine and rewrites the measured part of this page;
`make bench BENCH=\"--rounds 11 --peer 'mine=/opt/mine -l {listen} -4 {backend}'\"` passes options on (`bench --help`).

How it is measured:

- Load, contestant and backend share one machine and its loopback, as in every benchmark of this field: absolute values
  say little, so what counts is the ratio to *no proxy* (the load talks to the backend directly, without a header) in the
  same round. A round puts each load on all contestants one after the other; each round begins with another one.
- Every measurement has a network namespace of its own, with freshly started programs: nobody inherits routes, grown
  buffers, or connections in TIME_WAIT. The load closes short connections first, so TIME_WAIT lies with the load and on
  the contestant's upstream side; no pair of addresses comes twice, and the kernel need not cut any short.
- Every byte is checked where it ends up, and at the end every stream is half-closed and read to its end. A contestant that
  loses or changes bytes is marked ✗; its speed is reported all the same.
- Backends check that they see the claimed client, or the contestant is marked ✗, too.
- ↓ is what came back to the load, ↑ what it wrote; packets are estimated as tcpkali does (1 460 bytes), so that ⇅, ↓, ↑
  and pkt/s are the columns of go-mmproxy's, mmproxy-rs' and libproxyproto's tables.
- In the closed loops both cores are saturated. Their p99 and p99.9 are mostly the waiting of load and backend for a CPU: the fewer processes take part,
  the longer each runs before another one's turn, so *no proxy* has the longest. *At a constant rate*, below what any contestant can do, an answer is
  timed from when its request was due; there the load's threads go before all others on their cores (nice -20).
- CPU is that of the contestant's processes in the measured window. Work that the kernel does for them in others' time is
  not in it; that holds for all alike.

";

/// For the loads over three hosts, on the page of those on loopback.
pub(super) const HOSTS: &str = "\
## Over three hosts

Sender, proxy and backend each in a network namespace of its own, in a line of veth pairs, as on three machines: `make bench BENCH='--only hosts'`. *no proxy* is the load that
talks to the backend through the middle host, which forwards. All share the two cores of one machine, so the middle host's work is paid by all.

";

/// For the HTTPS loads.
pub(super) const HTTPS: &str = "\
# Benchmarks of HTTPS

`truepeer https` beside its peers: HTTPS in, HTTPS out, the case of the guide *SSL Reverse Proxy* (Arm's dataplane-stack), in which
NGINX does the proxying and wrk2 the load. `make bench BENCH='--only https'` repeats all of it on your machine and rewrites the
measured part of this page; `--pin` gives the proxy a core of its own (`bench --help`).

How it is measured:

- There are two origins, each with a part of this page: the guide's (`--origin nginx`), NGINX with one worker, which serves a file of 1 KiB over
  TLS 1.3 with TLS_AES_128_GCM_SHA256, and this project's own (`--origin lean`), which needs less CPU. On two cores the guide's needs so much that a
  fast proxy waits for it. All contestants have the same origin with the same configuration. In *no proxy* the load talks to it directly.
- Every proxy has one worker (hitch with something behind it: one each, two processes), TLS 1.3 with the same suite and the same
  certificate on its front, a pool of connections kept alive to the origin, whose certificate none of them verifies, and allows GET
  alone. NGINX has the guide's configuration: beside it stand only files, addresses, more connections than 512, and a longer
  keep-alive time-out, which idle connections need. `truepeer https` also says who the client is (Forwarded, X-Forwarded-For), as it
  does by default; the others say nothing.
- The load is our own (epoll and rustls, a thread for each core that it may use), on the same loopback in a network namespace that each
  measurement has to itself, with freshly started programs. Keys and certificates are made for the run.
- Every answer is checked: status, Content-Length and each byte; and so is the certificate, by which the load knows who terminates TLS.
- In the closed loop a connection asks again as soon as it has its answer, so a slow proxy is asked less: its percentiles there flatter it.
  At a *constant rate*, the same for all in a round, an answer is timed from when its request was due (as wrk2 does it), so that
  a stall counts for all who would have asked meanwhile. There the load's threads go before all others on their cores (nice -20).
- A round puts each load on all contestants one after the other; each round begins with another one. What counts are ratios
  within a round.
- CPU is that of the contestant's processes in the measured window. Memory is what they hold in proportion to how many share
  it (Pss), after minus before, by connection.

";

/// For the second origin of the HTTPS loads, on their page.
pub(super) const GUIDES_ORIGIN: &str = "\
## With the guide's origin

The same loads with the guide's NGINX as origin (`make bench BENCH='--only https --pin --origin nginx'`). It needs more CPU for a request
than a proxy does and shares a core with the load, so fast proxies wait for it. Compare the CPU time for each request here.

";

/// For the HTTPS load on two network stacks, on the page of HTTPS.
pub(super) const STACKS: &str = "\
## On VPP's stack, beside the kernel's

The guide's other half: origin, proxy and load on VPP's TCP in user space, in the three namespaces of its loopback layout
(`truepeer vpp up --loopback`), and the same three on the kernel's, in network namespaces. `make bench BENCH='--only stacks'` measures
where VPP is installed, or `TRUEPEER_VPP` names one; elsewhere VPP's rows are skipped, and said to be. All parties are programs of their
own, the load as well (the one of `make demo-https`), since VPP's library is put under each. *no proxy, kernel* is what all are compared
with; without a proxy the load stands in its place, one hop from the origin. On two cores the comparison is of two whole machines: on VPP's stack its one core does nothing but TCP, and all programs share the other.

";

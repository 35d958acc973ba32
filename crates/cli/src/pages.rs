//! What `--help` shows around the options of the shorter commands: examples and notes.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::{
    CheckArgs, ConnectArgs, DoctorArgs, ProbeArgs, ReloadArgs, RoutesArgs, RunArgs, ServeArgs, SessionsArgs,
    StatusArgs, TopArgs, UpgradeArgs, VppArgs, WhoisArgs,
};

pub(super) fn serve() -> Command {
    dress(ServeArgs::augment_args(Command::new("serve")), &SERVE)
}

const SERVE: Page = Page {
    which: table::SERVE,
    examples: &[example(
        "Everything that the file says, in one process",
        "truepeer serve -c /etc/truepeer/truepeer.toml",
    )],
    notes: "\
The file has a table for each job, [[proxy]], [[https]] or [[attach]], whose keys are the long options of the command of that name; a table [admin]; and a table [log]. The keys workers, drain-timeout and max-flows are for the whole process and come before the first table. Relative paths in the file begin at its directory.

Exit status: 2 if the file is wrong. Every problem is printed with its line and column.",
};

pub(super) fn check() -> Command {
    dress(CheckArgs::augment_args(Command::new("check")), &CHECK)
}

const CHECK: Page = Page {
    which: table::CHECK,
    examples: &[
        example("Before a reload", "truepeer check -c truepeer.toml && systemctl reload truepeer"),
        example("The configuration with every default", "truepeer check --show"),
    ],
    notes: "\
Every problem is printed, with its line and column: keys, values, contradictions, files that can't be read, names that can't be resolved. Nothing is opened or changed.

Exit status: 0 if truepeer serve can carry the file out, perhaps with warnings; 2 if not.",
};

pub(super) fn reload() -> Command {
    dress(ReloadArgs::augment_args(Command::new("reload")), &RELOAD)
}

const RELOAD: Page = Page {
    which: table::RELOAD,
    examples: &[example("After the file was edited", "truepeer reload")],
    notes: "\
What has changed is printed and takes effect for new sessions; open ones go on. If anything in the file is wrong, everything stays as it was, the reason is printed and the exit status is 1. SIGHUP does the same.",
};

pub(super) fn upgrade() -> Command {
    dress(UpgradeArgs::augment_args(Command::new("upgrade")), &UPGRADE)
}

const UPGRADE: Page = Page {
    which: table::UPGRADE,
    examples: &[example("After a new version was installed", "truepeer upgrade")],
    notes: "\
Starts `truepeer serve --take-over` in the background and waits until it serves. The new process gets the listening sockets and the UDP flows of the running one, which ends with its last session, or after --drain-timeout. No connection is refused. If the new process can't start, the running one goes on, and the exit status is 1.",
};

pub(super) fn status() -> Command {
    dress(StatusArgs::augment_args(Command::new("status")), &STATUS)
}

const STATUS: Page = Page {
    which: table::STATUS,
    examples: &[
        example("The truepeer of the usual configuration file", "truepeer status"),
        example(
            "One that was started as: truepeer proxy --admin /run/tp.sock …",
            "truepeer status --admin /run/tp.sock",
        ),
    ],
    notes: "Counters are since the start. The exit status is 1 if no truepeer answers.",
};

pub(super) fn sessions() -> Command {
    dress(SessionsArgs::augment_args(Command::new("sessions")), &SESSIONS)
}

const SESSIONS: Page = Page {
    which: table::SESSIONS,
    examples: &[
        example("All that are open", "truepeer sessions"),
        example("Those of one network, for machines", "truepeer sessions --client 192.0.2.0/24 --json"),
        example("End them: both ends see a reset", "truepeer sessions --client 192.0.2.0/24 --kill"),
    ],
    notes: "\
A session whose client is not known yet (its header has not come) is listed under its sender. STAGE is header, handshake (TLS), connecting, relaying, or idle (HTTP, between requests). UP and DOWN are bytes to the backend and to the sender.

--kill needs --client, so that not all sessions end by mistake; --client any means all.",
};

pub(super) fn whois() -> Command {
    dress(WhoisArgs::augment_args(Command::new("whois")), &WHOIS)
}

const WHOIS: Page = Page {
    which: table::WHOIS,
    examples: &[
        example("The client of a server's log line", "truepeer whois 203.0.113.7:50234"),
        example("A stand-in of --pseudo-ipv4, for machines", "truepeer whois 254.237.119.6 --json"),
    ],
    notes: "\
Looked at are the open sessions of the running truepeer, and the tables of truepeer attach in every network namespace (as root; no process is needed). What has ended is in the log. truepeer run keeps no table that others can read.

TLVs have their names, other types their number (tlv_0xe4). Secrets of --require-tlv are never shown. The exit status is 1 if nothing is found.",
};

pub(super) fn top() -> Command {
    dress(TopArgs::augment_args(Command::new("top")), &TOP)
}

const TOP: Page = Page {
    which: table::TOP,
    examples: &[
        example("The truepeer of the usual configuration file", "truepeer top"),
        example("On another machine", "ssh -t HOST truepeer top"),
    ],
    notes: "\
Shows rates, the open sessions and what is refused, and asks again every second. Type ? for the keys, q to quit. 80 columns and 24 lines show everything. While truepeer doesn't answer, the last values stay and the reason is shown; a truepeer that is restarted or upgraded is found again.

Needs a terminal. For scripts see truepeer status --json and truepeer sessions --json.",
};

pub(super) fn run() -> Command {
    dress(RunArgs::augment_args(Command::new("run")), &RUN)
}

const RUN: Page = Page {
    which: table::RUN,
    examples: &[
        example("A web server behind a load balancer at 10.0.0.7", "truepeer run --allow 10.0.0.7 -- python3 -m http.server 8000"),
        example("Only its public port, not its admin port", "truepeer run --port 443 --allow 10.0.0.0/8 -- nginx -g 'daemon off;'"),
        example("HAProxy with send-proxy-v2 on this machine", "truepeer run -- redis-server --port 6379"),
    ],
    notes: "\
The command is started in this process's place: it keeps its process number, its terminal and its signals (by notify it is a child: signals are passed on, its exit status is truepeer's). Neither root nor a capability is needed.

Mechanism (--via): preload (a library that hooks libc's accept()), or notify (a supervisor that answers the program's system calls, for static programs such as those of Go, and for musl). auto chooses preload if the program would load the library.",
};

pub(super) fn connect() -> Command {
    dress(ConnectArgs::augment_args(Command::new("connect")), &CONNECT)
}

const CONNECT: Page = Page {
    which: table::CONNECT,
    examples: &[
        example(
            "Test how a server treats a client",
            "truepeer connect --from 203.0.113.7:5000 -- nc 127.0.0.1 9090",
        ),
        example(
            "Headers for one network and port only",
            "truepeer connect --send-proxy v1 --to 10.0.0.0/8:443 -- curl https://10.0.0.1/",
        ),
    ],
    notes: "",
};

pub(super) fn routes() -> Command {
    dress(RoutesArgs::augment_args(Command::new("routes")), &ROUTES)
}

const ROUTES: Page = Page {
    which: table::ROUTES,
    examples: &[
        example("Print what a backend on this machine needs", "truepeer routes apply -4 127.0.0.1:443 -6 [::1]:443 --print"),
        example(
            "For a service without CAP_NET_ADMIN, in its unit file",
            "ExecStartPre=+truepeer routes apply -4 127.0.0.1:443\nExecStopPost=+truepeer routes remove",
        ),
    ],
    notes: "\
ACTION: show lists what is set, ours and others'; apply sets what is missing; remove removes what is ours.

`truepeer proxy` does the same by itself where it may (--routes auto), and undoes it when its last instance ends. What `apply` makes stays until `remove`.",
};

pub(super) fn doctor() -> Command {
    dress(DoctorArgs::augment_args(Command::new("doctor")), &DOCTOR)
}

const DOCTOR: Page = Page {
    which: table::DOCTOR,
    examples: &[
        example(
            "Why does the server on port 443 not see its clients? And: what is there on this host",
            "truepeer doctor 443\ntruepeer doctor",
        ),
        example(
            "Check that a web server on this machine can see its clients",
            "truepeer doctor -4 127.0.0.1:80 -6 [::1]:80",
        ),
        example(
            "The same, with missing routes added for the duration of the test",
            "truepeer doctor -4 127.0.0.1:80 --try",
        ),
    ],
    notes: "Without a port or a backend it looks at the configuration file, the truepeer that runs by it, what is attached, its devices, and servers. With a port it tells who listens, who takes headers off, by which devices, who came and who was refused in the last ten minutes, and makes a connection. With -4, -6 or --listen-transparent it checks whether proxy would work for them, and lists what each way needs. Refusals of attach are taken from attach status --follow. The commands that it prints refuse nobody who is served now.\n\nNothing is changed without --try. The exit status is 0 if all required checks pass, otherwise 1.",
};

pub(super) fn probe() -> Command {
    dress(ProbeArgs::augment_args(Command::new("probe")), &PROBE)
}

const PROBE: Page = Page {
    which: table::PROBE,
    examples: &[
        example("What does a web server make of each header", "truepeer probe 127.0.0.1:8080 --as http"),
        example(
            "Whom does it believe in? By its log, from an address that its log can tell apart",
            "truepeer probe 127.0.0.1:8080 --as http --from 127.0.0.9 --client-log /var/log/nginx/access.log",
        ),
        example(
            "From where no sender is: headers should be refused",
            "truepeer probe 10.0.0.2:25 --as smtp --stranger",
        ),
        example("Does a sender write right headers", "truepeer probe --listen 7000 --count 3"),
    ],
    notes: "\
Sends the published vectors (vectors/ of the repository), headers cut at every byte and long ones, some hundred connections one after the other. A header counts as taken if the application answers a request that follows it, as the protocol of --as does. What does not show is reported as such, never as a fault. Each fault is printed with its bytes, and with the sentence of the specification that it breaks.

The exit status is 0 if no MUST is broken, 1 if one is, 2 if the command line is wrong or the target may not be probed, and 3 if nothing could be told: no connection, or no request was answered, with a header or without one.",
};

pub(super) fn vpp() -> Command {
    dress(VppArgs::augment_args(Command::new("vpp")), &VPP)
}

const VPP: Page = Page {
    which: table::VPP,
    examples: &[
        example(
            "Origin, proxy and client on one machine, each in a namespace of its own",
            "truepeer vpp up --loopback --core 1\ntruepeer vpp run --namespace server --core 2 -- nginx -c /path/to/nginx_server.conf",
        ),
        example(
            "The proxy between two network cards, or between two devices of the kernel's",
            "truepeer vpp up --ethernet 0001:01:00.0,0001:01:00.1 --core 1\ntruepeer vpp up --ethernet veth0,veth1",
        ),
        example(
            "The whole case at once, ten seconds (from the source tree: make demo-https)",
            "truepeer vpp demo -d 10s",
        ),
        example("What runs, and its end", "truepeer vpp status\ntruepeer vpp down"),
    ],
    notes: "VPP comes from FD.io: packages vpp and vpp-plugin-core.",
};

//! PostgreSQL, which refuses to run as root: tests need [`crate::Test::needs_several_users`].

use rustix::process::Signal;

use super::dir_of;
use crate::bed::Bed;
use crate::passwd::User;
use crate::program::Program;
use crate::running::Running;

/// PostgreSQL. `select inet_client_addr(), inet_client_port()` returns the client that it sees.
#[derive(Debug, Clone, Copy)]
pub struct Postgres;

impl Postgres {
    /// Creates a new cluster that trusts every user, and starts it in the calling thread's network namespace.
    pub fn start(bed: &Bed, addresses: &[&str], port: u16) -> anyhow::Result<Running> {
        Postgres::start_with(bed, addresses, port, |program| program)
    }

    /// The same; the caller can change how the program is run.
    pub fn start_with(
        bed: &Bed,
        addresses: &[&str],
        port: u16,
        adjust: impl FnOnce(Program) -> Program,
    ) -> anyhow::Result<Running> {
        let user = User::named("postgres")?;
        let dir = dir_of(bed, &bed.fresh_name("postgres"), user)?;
        let data = dir.join("data");
        let initdb =
            Program::new("initdb").args(["--no-sync", "--no-locale", "--auth=trust", "-U", "postgres", "-D"]);
        initdb.arg(&data).as_user(user).run(bed)?;
        std::fs::write(data.join("pg_hba.conf"), "host all all all trust\n")?;
        let program = Program::new("postgres")
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&dir)
            .args(["-h", &addresses.join(","), "-p", &port.to_string(), "-F"])
            .as_user(user)
            .stop_by(Signal::QUIT); // it must end its children, because they lead their own process groups
        let postgres = adjust(program).start(bed)?;
        postgres.wait_for_log("ready to accept connections")?;
        Ok(postgres)
    }

    /// A psql that runs one query and prints the bare value.
    pub fn psql(host: &str, port: u16, question: &str) -> Program {
        let port = port.to_string();
        Program::new("psql")
            .args(["-X", "-A", "-t", "-U", "postgres", "-h", host, "-p", &port, "-c", question])
            .env("PGCONNECT_TIMEOUT", "10")
    }
}

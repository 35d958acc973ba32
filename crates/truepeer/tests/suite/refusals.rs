//! Who may send and which clients may be claimed. Refusals name the flag that would permit the connection.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;

use anyhow::ensure;
use truepeer_testbed::{Bed, Behaviour, Program, Test, client, ip_here, tests};

use crate::stand::{
    BACKEND_V4, BACKEND_V6, CLIENT_V4, CLIENT_V6, DOOR_V4, DOOR_V6, SITE_V4, SITE_V6, Stand, TRUEPEER, ask,
    bare_proxy, classic_rules, header_of, knock, proxy, refused, refused_from,
};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_refused_sender_names_the_flag,
        senders_are_allowed_by_a_file,
        a_broken_line_of_an_allow_list_is_named,
        claims_of_loopback_are_allowed_by_a_flag,
        a_refused_claim_names_the_flag,
        no_client_becomes_this_host_whatever_its_addresses_are_now,
        claims_of_this_host_are_allowed_by_a_flag,
        under_the_drop_in_name_this_host_may_be_claimed,
        a_client_at_the_backends_address_is_refused_whether_it_is_up_or_down,
        denied_clients_are_refused_whoever_sends,
        a_missing_header_is_explained,
        a_wrong_address_in_a_header_is_quoted,
        a_forbidden_header_is_refused,
        an_optional_header_is_taken_or_left,
        the_same_complaint_comes_once_a_minute,
        a_sender_is_the_same_on_a_dual_stack_listener,
        a_link_local_client_is_refused_and_explained,
        the_longest_header_can_be_set,
    ]
}

fn a_refused_sender_names_the_flag(bed: &Bed) -> anyhow::Result<()> {
    let advice = {
        let stand = Stand::with_options(bed, Behaviour::Who, &["--allow", "192.0.2.0/24"])?;
        refused(&header_of(CLIENT_V4.parse()?)?)?;
        stand.truepeer.wait_for_log("add --allow 127.0.0.1")?;
        ensure!(!stand.backend.log().contains("accepted"), "{}", stand.backend.log());
        "127.0.0.1"
    };
    // With that flag, the sender is served.
    let _stand = Stand::with_options(bed, Behaviour::Who, &["--allow", advice])?;
    ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4);
    Ok(())
}

fn senders_are_allowed_by_a_file(bed: &Bed) -> anyhow::Result<()> {
    let list = bed.write("senders", "# our load balancers\n\n127.0.0.8/31 # a pair\n  ::1\n")?;
    let list = list.display().to_string();
    let stand =
        Stand::with_options(bed, Behaviour::Who, &["--allow", "192.0.2.0/24", "--allowed-subnets", &list])?;
    let header = header_of(CLIENT_V4.parse()?)?;
    let seen = client::ask(&mut client::connect_from("127.0.0.9:0", DOOR_V4)?, &header)?;
    ensure!(seen.trim() == CLIENT_V4, "{seen:?}");
    refused_from("127.0.0.10:0", &header)?;
    stand.truepeer.wait_for_log("--allow 127.0.0.10")
}

fn a_broken_line_of_an_allow_list_is_named(bed: &Bed) -> anyhow::Result<()> {
    let list = bed.write("senders", "10.0.0.0/8\n# fine so far\n10.0.0.0/33\n")?;
    let truepeer = proxy().option("--allowed-subnets", list.display()).start_unready(bed)?;
    let status = truepeer.wait_end()?;
    let log = truepeer.log();
    ensure!(!status.success() && log.contains("line 3") && log.contains("10.0.0.0/33"), "{status}: {log}");
    ensure!(log.contains("--allowed-subnets") && log.lines().count() == 1, "{log}");
    Ok(())
}

fn claims_of_loopback_are_allowed_by_a_flag(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Who, &["--allow-claims", "loopback"])?;
    for (claim, site) in [("127.0.0.1:65432", SITE_V4), ("[::1]:65432", SITE_V6)] {
        let seen = ask(&client::v2(claim, site)?)?;
        ensure!(seen == claim, "{claim} was seen as {seen}");
    }
    stand.truepeer.wait_for_log("WARN")
}

fn a_refused_claim_names_the_flag(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Who, &[])?;
    refused(&client::v2("127.0.0.1:65432", SITE_V4)?)?;
    stand.truepeer.wait_for_log("add --allow-claims 127.0.0.1")
}

const OWN_V4: &str = "10.9.0.1:65432";
const OWN_V6: &str = "[fd00:9::1]:65432";

fn own_addresses(change: &str) -> anyhow::Result<()> {
    let v6 = if change == "add" { "fd00:9::1/128 dev lo nodad" } else { "fd00:9::1/128 dev lo" };
    ip_here(&[&format!("addr {change} 10.9.0.1/32 dev lo"), &format!("addr {change} {v6}")])
}

fn no_client_becomes_this_host_whatever_its_addresses_are_now(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Who, &[])?;
    let served = || {
        for (claim, site) in [(OWN_V4, SITE_V4), (OWN_V6, SITE_V6)] {
            let seen = ask(&client::v2(claim, site)?)?;
            ensure!(seen == claim, "{claim} was seen as {seen}");
        }
        Ok(())
    };
    served()?;
    own_addresses("add")?;
    refused(&client::v2(OWN_V4, SITE_V4)?)?;
    // Before the next: a sender's complaints are logged once a minute, and another worker may log first.
    stand.truepeer.wait_for_log("10.9.0.1:65432, an address of this host")?;
    stand.truepeer.wait_for_log("add --allow-claims 10.9.0.1")?;
    // With these set, bind() accepts every address and proves nothing.
    for nonlocal in ["0", "1"] {
        for family in ["ipv4", "ipv6"] {
            std::fs::write(format!("/proc/sys/net/{family}/ip_nonlocal_bind"), nonlocal)?;
        }
        refused(&client::v2(OWN_V4, SITE_V4)?)?;
        refused(&client::v2(OWN_V6, SITE_V6)?)?;
        refused(&client::v2("10.9.0.1:1", SITE_V4)?)?;
        ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4);
        ensure!(ask(&header_of(CLIENT_V6.parse()?)?)? == CLIENT_V6);
    }
    own_addresses("del")?;
    served()
}

fn claims_of_this_host_are_allowed_by_a_flag(bed: &Bed) -> anyhow::Result<()> {
    own_addresses("add")?;
    let stand = Stand::with_options(bed, Behaviour::Who, &["--allow-claims", "10.9.0.0/16"])?;
    ensure!(ask(&client::v2(OWN_V4, SITE_V4)?)? == OWN_V4);
    stand
        .truepeer
        .wait_for_log("an address of this host: the backend will believe it; --allow-claims lets it pass")?;
    refused(&client::v2(OWN_V6, SITE_V6)?).map(drop)
}

fn under_the_drop_in_name_this_host_may_be_claimed(bed: &Bed) -> anyhow::Result<()> {
    own_addresses("add")?;
    let _backend = Behaviour::Who.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    classic_rules(bed)?;
    let name = bed.dir().join("go-mmproxy");
    symlink(TRUEPEER, &name)?;
    let go_mmproxy = Program::new(name).args(["-l", DOOR_V4, "-4", BACKEND_V4, "-6", BACKEND_V6]);
    let go_mmproxy = go_mmproxy.start(bed)?;
    bed.wait_for("the listener", || client::connect(DOOR_V4).is_ok())?;
    ensure!(ask(&client::v2(OWN_V4, SITE_V4)?)? == OWN_V4, "{}", go_mmproxy.log());
    ensure!(ask(&client::v2(OWN_V6, SITE_V6)?)? == OWN_V6, "{}", go_mmproxy.log());
    Ok(())
}

fn a_client_at_the_backends_address_is_refused_whether_it_is_up_or_down(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Who, &["--allow-claims", "loopback"])?;
    let from_there = || {
        for (claim, site) in [(BACKEND_V4, SITE_V4), (BACKEND_V6, SITE_V6)] {
            let mut header = client::v2(claim, site)?;
            header.extend_from_slice(b"echo");
            let mut stream = client::connect(DOOR_V4)?;
            stream.write_all(&header)?;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            ensure!(answer.is_empty(), "{claim}: {:?}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    };
    from_there()?;
    stand.backend.stop()?;
    from_there()?;
    stand.truepeer.wait_for_log("reason=\"client_is_backend\"")
}

fn denied_clients_are_refused_whoever_sends(bed: &Bed) -> anyhow::Result<()> {
    let list = bed.write("denied", "203.0.113.0/29\n2001:db8::7\n")?;
    let stand = Stand::behind(bed, Behaviour::Who, &proxy().option("--deny-clients", list.display()))?;
    refused(&header_of(CLIENT_V4.parse()?)?)?;
    refused(&header_of(CLIENT_V6.parse()?)?)?;
    // Not even in the notation of the other family.
    refused(&client::v2("[::ffff:203.0.113.7]:5000", SITE_V6)?)?;
    ensure!(!stand.backend.log().contains("accepted"), "{}", stand.backend.log());
    for free in ["203.0.113.8:5000", "[2001:db8::8]:5000"] {
        ensure!(ask(&header_of(free.parse()?)?)? == free);
    }
    stand.truepeer.wait_for_log("is denied; --deny-clients lists it")
}

fn a_missing_header_is_explained(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Who, &[])?;
    refused(b"GET / HTTP/1.1\r\n\r\n")?;
    stand.truepeer.wait_for_log("HTTP")?;
    stand.truepeer.wait_for_log("send-proxy")
}

fn a_wrong_address_in_a_header_is_quoted(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Who, &[])?;
    refused(b"PROXY TCP4 192.0.2.300 198.51.100.1 65432 80\r\n")?;
    stand.truepeer.wait_for_log("the header says \"192.0.2.300\"")
}

fn a_forbidden_header_is_refused(bed: &Bed) -> anyhow::Result<()> {
    let stand =
        Stand::with_options(bed, Behaviour::Echo, &["--header", "forbid", "--header", "127.0.0.9=require"])?;
    // With `forbid` no header is looked for: it would be the client's own data.
    let echoed = client::ask(&mut knock()?, b"plain")?;
    ensure!(echoed == "plain", "{echoed:?}");
    let mut required = client::connect_from("127.0.0.9:0", DOOR_V4)?;
    let echoed = client::ask(&mut required, &[header_of(CLIENT_V4.parse()?)?, b"with".to_vec()].concat())?;
    ensure!(echoed == "with", "{echoed:?}");
    refused_from("127.0.0.9:0", b"without a header")?;
    stand.truepeer.wait_for_log("not a PROXY header")
}

fn an_optional_header_is_taken_or_left(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(
        bed,
        Behaviour::Echo,
        &["--header", "127.0.0.9=optional", "--header-timeout", "500ms"],
    )?;
    let from = |data: &[u8]| client::ask(&mut client::connect_from("127.0.0.9:0", DOOR_V4)?, data);
    ensure!(from(&[header_of(CLIENT_V4.parse()?)?, b"with".to_vec()].concat())? == "with");
    stand.backend.wait_for_log(&format!("{CLIENT_V4} eof 4"))?;
    ensure!(from(b"without")? == "without");
    stand.backend.wait_for_log("127.0.0.9:")?;
    // It starts like a header but is none: never guess.
    refused_from("127.0.0.9:0", b"PROXY TCP4 nonsense\r\n")?;
    refused(b"from another sender")?;
    Ok(())
}

fn the_same_complaint_comes_once_a_minute(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Echo, &[])?;
    for _ in 0..100 {
        refused(b"GET / HTTP/1.1\r\n\r\n")?;
    }
    refused_from("127.0.0.9:0", b"GET / HTTP/1.1\r\n\r\n")?;
    stand.truepeer.wait_for_log("127.0.0.9")?;
    let lines = stand.truepeer.log().lines().filter(|line| line.contains("WARN")).count();
    ensure!(lines == 2, "{lines} warnings:\n{}", stand.truepeer.log());
    Ok(())
}

/// There the kernel shows an IPv4 sender as `::ffff:127.0.0.1`.
fn a_sender_is_the_same_on_a_dual_stack_listener(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4])?;
    let both = || bare_proxy().args(&["-l", "[::]:8443"]).ipv4(BACKEND_V4).ipv6(BACKEND_V6);
    {
        let truepeer = both().start(bed)?;
        truepeer.wait_listening(DOOR_V4)?;
        for listener in [DOOR_V4, DOOR_V6] {
            let mut stream = client::connect(listener)?;
            let header = header_of(SocketAddr::new([203, 0, 113, 7].into(), stream.local_addr()?.port()))?;
            ensure!(client::ask(&mut stream, &header)?.starts_with("203.0.113.7:"));
        }
    }
    let truepeer = both().allow("::1").start(bed)?;
    truepeer.wait_listening(DOOR_V4)?;
    refused(&header_of(CLIENT_V4.parse()?)?)?;
    truepeer.wait_for_log("add --allow 127.0.0.1")
}

fn a_link_local_client_is_refused_and_explained(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Who, &[])?;
    refused(&client::v2("[fe80::1]:5000", SITE_V6)?)?;
    stand.truepeer.wait_for_log("link-local")
}

fn the_longest_header_can_be_set(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Who, &["--header-max", "536"])?;
    // 16 bytes, 12 of addresses, 3 for a NOOP's type and length.
    let padded = |len: usize| client::v2_with_tlvs(CLIENT_V4, SITE_V4, &[(4, &vec![0; len - 31])]);
    ensure!(ask(&padded(536)?)? == CLIENT_V4);
    refused(&padded(537)?)?;
    stand.truepeer.wait_for_log("--header-max")
}

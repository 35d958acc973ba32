use super::*;

const HOSTILE: &str = "<script>alert(1)</script>&\"'><img src=x onerror=alert(2)>";
const SHOWN: &str =
    "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;&gt;&lt;img src=x onerror=alert(2)&gt;";

fn status(text: &str) -> StatusDoc {
    let text = serde_json::to_string(text).unwrap();
    let json = format!(
        r#"{{"version":{text},"pid":7,"state":{text},"reason":{text},"missing":[{text}],
        "splice":{{"reason":{text},"found":{text}}},
        "listeners":[{{"entry":{text},"protocol":"tcp","addresses":["192.0.2.9:443"],"site":{text},
        "listening":true,"open":2,"counters":{{"connections_accepted":9}},
        "refusals":{{{text}:1,"v1_port":3}},"not_spliced":{{{text}:1,"sack":2}}}}],
        "attachments":[{{"netns":{text},"attached":true,"uncovered":[{text}],"ports":[
        {{"port":443,"protocol":"tcp",
        "draining":false,"open":5,"counters":{{"refused_banned":2,{text}:3}}}}]}},
        {{"netns":{text},"attached":null,"ports":[]}}],
        "complaints":[{{"reason":{text},"listener":{text},"protocol":"tcp","about":"203.0.113.9",
        "count":4,"seconds":61}}]}}"#
    );
    serde_json::from_str(&json).unwrap()
}

fn bans(text: &str) -> Vec<BanDoc> {
    let client = "203.0.113.7".to_owned();
    vec![BanDoc { client, port: None, since: 1000, until: Some(1600), by: Some(0), why: text.to_owned() }]
}

#[test]
fn hostile_text_in_every_field_is_shown_as_text() {
    let page = html(&status(HOSTILE), &bans(HOSTILE), 1060);
    // Every `<` of the hostile text would begin one of these.
    assert!(!page.contains("<script>") && !page.contains("<img"), "{page}");
    // The version, the state (twice), the reason, what is missing, splice, the listener's entry and site, codes,
    // namespaces, devices, the complaint and the ban.
    assert!(page.matches(SHOWN).count() >= 16, "{}: {page}", page.matches(SHOWN).count());
    let turned = html(&status("\u{202e}abc"), &[], 0);
    assert!(turned.contains("{U+202E}abc") && !turned.contains('\u{202e}'));
}

#[test]
fn reasons_are_sentences_with_their_code_beside() {
    let page = html(&status("x"), &bans("five wrong passwords"), 1060);
    for part in [
        "version 1: a port is not a number from 0 to 65535; mend the sender: decimal, \
         without leading zeros <code>v1_port</code>",
        "one connection has it, the other has not <code>sack</code>",
        "2 times: client banned: see truepeer bans (refused_banned)",
        "attached in x: not covered: x; connections that come in there are refused (refused_unjudged)",
        "<tr data-about=\"203.0.113.9\">",
        "1m00s ago",
        "9m00s",
        "five wrong passwords",
        "not open, although it should be: x",
        "data-open=7 data-taken=9 data-refused=4 ",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
}

#[test]
fn what_is_empty_is_hidden_and_what_is_too_much_is_counted() {
    let json = r#"{"version":"1","pid":1,"state":"serving","listeners":[],"attachments":[]}"#;
    let one = bans("").remove(0);
    let many: Vec<_> = (0..MOST_BANS + 5).map(|_| one.clone()).collect();
    let page = html(&serde_json::from_str(json).unwrap(), &many, 1060);
    assert!(page.contains("<section id=lately data-live hidden>"), "{page}");
    assert!(page.contains("5 more: truepeer bans lists them"), "{page}");
    assert!(page.contains("class=\"state good\">serving") && !page.contains("class=warning"), "{page}");
}

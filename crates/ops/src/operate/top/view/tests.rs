use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::super::news::Snapshot;
use super::*;
use crate::admin::listing::SessionDoc;
use crate::admin::status::StatusDoc;

fn status(pid: u32, second: u64, refused: u64) -> StatusDoc {
    let (up, down) = (second * 200_000, second * 4_000_000);
    let json = format!(
        r#"{{"version":"0.1.0","pid":{pid},"state":"serving","listeners":[{{"entry":"proxy","protocol":"tcp",
        "addresses":["0.0.0.0:8443"],"listening":true,"open":2,"counters":{{"connections_accepted":{},
        "bytes_up":{up},"bytes_down":{down}}},"refusals":{{"sender_not_allowed":{refused},"not_a_header":41}}}}],
        "attachments":[{{"netns":"","attached":true,"ports":[{{"port":53,"protocol":"udp","draining":false,
        "open":7,"counters":{{}}}}]}}]}}"#,
        1234 + second * 12
    );
    serde_json::from_str(&json).unwrap()
}

fn session(number: u32, client: &str, rate: u64, tag: &str) -> SessionDoc {
    SessionDoc {
        id: format!("tcp-0-{number}-2"),
        listener: "0.0.0.0:8443".into(),
        kind: "tcp".into(),
        stage: "relaying".into(),
        client: Some(client.parse().unwrap()),
        sender: "10.0.0.7:40112".parse().unwrap(),
        backend: Some("127.0.0.1:80".parse().unwrap()),
        bytes_up: rate * 10,
        bytes_down: rate * 20,
        rate_up: rate,
        rate_down: rate * 2,
        age_seconds: 61.0,
        tags: [("aws_vpc_endpoint".to_owned(), tag.to_owned())].into(),
    }
}

fn sessions() -> Vec<SessionDoc> {
    vec![session(1, "192.0.2.1:49152", 10, "vpce-1"), session(2, "[2001:db8::1]:49152", 90_000, "vpce-2")]
}

fn model() -> Model {
    let (mut model, start) = (Model::default(), Instant::now());
    for second in 0..5 {
        let snapshot = Snapshot { status: status(7, second, 3 + second), sessions: sessions() };
        model.update(start + Duration::from_secs(second), snapshot);
    }
    model
}

fn screen(model: &Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(model, frame)).unwrap();
    let cells = terminal.backend().buffer().content().chunks(usize::from(width).max(1));
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    cells.map(|cells| line(cells).trim_end().to_owned() + "\n").collect()
}

fn typed(model: &mut Model, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\x1b' => KeyCode::Esc,
            key => KeyCode::Char(key),
        };
        model.on_key(KeyEvent::from(code));
    }
}

#[test]
fn eighty_columns_and_twenty_four_lines_show_everything() {
    let screen = screen(&model(), 80, 24);
    println!("{screen}");
    for part in [
        "truepeer 0.1.0 serving  2 open of 1,282 taken  process 7",
        "new 12/s",
        "up 195 KiB/s",
        "down 3.8 MiB/s",
        "2 sessions by rate",
        "[2001:db8::1]:49152",
        "87.9 KiB",
        "176 KiB",
        "1m01s",
        "           7       +4  the sender is not on the allow-list (sender_not_allowed)",
        "          41           not_a_header",
        "q quit  ? help",
    ] {
        assert!(screen.contains(part), "{part}\n{screen}");
    }
    assert!(screen.find("2001:db8") < screen.find("192.0.2.1"), "sorted by rate");
}

#[test]
fn a_reason_is_told_as_far_as_there_is_room() {
    let model = model();
    let wide = screen(&model, 140, 24);
    let whole = "the sender is not on the allow-list; if it is your load balancer, add it to `allow` \
        (sender_not_allowed)";
    assert!(wide.contains(whole), "{wide}");
    let narrow = screen(&model, 70, 24);
    assert!(narrow.contains("+4  the sender is not on the allow-list\n"), "{narrow}");
}

#[test]
fn sessions_are_filtered_and_one_is_shown_in_detail() {
    let mut model = model();
    typed(&mut model, "/vpce-1");
    assert!(screen(&model, 80, 24).contains("1 sessions by rate, filter: vpce-1_"));
    typed(&mut model, "\n\n");
    let details = screen(&model, 80, 24);
    assert!(details.contains("aws_vpc_endpoint  vpce-1") && details.contains("10.0.0.7:40112"), "{details}");
    let snapshot = Snapshot { status: status(7, 6, 9), sessions: sessions().split_off(1) };
    model.update(Instant::now(), snapshot);
    let details = screen(&model, 80, 24);
    assert!(details.contains("aws_vpc_endpoint  vpce-1") && details.contains("It has ended"), "{details}");
    typed(&mut model, "\x1b\x1bq");
    assert!(model.is_over && model.filter.is_empty());
}

#[test]
fn the_choice_follows_its_session() {
    let mut model = model();
    typed(&mut model, "jj");
    let of_chosen = |model: &Model| {
        let visible = model.visible();
        visible[model.chosen_in(&visible).unwrap()].id.clone()
    };
    assert_eq!(of_chosen(&model), "tcp-0-1-2");
    typed(&mut model, "sss");
    assert_eq!((of_chosen(&model), model.sort.name()), ("tcp-0-1-2".to_owned(), "client"));
}

#[test]
fn listeners_and_attached_ports_are_a_key_away() {
    let mut model = model();
    typed(&mut model, "\t");
    let screen = screen(&model, 80, 24);
    let line = "proxy  tcp 0.0.0.0:8443                 2       12         1   195 KiB   3.8 MiB";
    assert!(screen.contains(line) && screen.contains("attach udp port 53"), "{screen}");
}

#[test]
fn another_process_is_named_and_silence_is_shown_with_its_reason() {
    let mut model = model();
    let now = Instant::now() + Duration::from_secs(10);
    model.on_silence(now, "no truepeer answers at /run/x.sock".into());
    let silent = screen(&model, 80, 24);
    assert!(silent.contains("asking again. no truepeer answers at /run/x.sock"), "{silent}");
    model.update(now, Snapshot { status: status(8, 0, 1), sessions: Vec::new() });
    let renewed = screen(&model, 80, 24);
    assert!(renewed.contains("process 8 instead of 7") && renewed.contains("0 sessions"), "{renewed}");
    // Its counters began anew: that is no rate, and nothing was refused just now.
    assert!(
        renewed.contains("           1           the sender is not on the allow-list (sender_not_allowed)"),
        "{renewed}"
    );
    model.update(now + Duration::from_secs(31), Snapshot { status: status(8, 0, 1), sessions: Vec::new() });
    assert!(!screen(&model, 80, 24).contains("instead of"));
}

#[test]
fn no_size_of_the_terminal_is_too_small_to_draw() {
    for keys in ["", "\n", "?", "\t", "/x"] {
        let mut model = model();
        typed(&mut model, keys);
        for (width, height) in (0..12).flat_map(|size| [(size, size), (80, size), (size * 3, 24), (300, 100)])
        {
            screen(&model, width, height);
            model.problem = model.problem.is_none().then(|| "no truepeer answers at /run/x.sock".into());
        }
    }
}

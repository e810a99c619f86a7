//! What the host makes of whole datagrams that are written to a TUN or TAP device.

use std::net::UdpSocket;
use std::time::Duration;

use e2e::run::eventually;

use super::LIMIT;
use super::stage::{Shunt, Stage, Told, capture, payload};

/// Sends a datagram and expects it on the socket.
#[track_caller]
fn arrives(stage: &Stage, socket: &UdpSocket, shunt: &Shunt, body: &[u8]) {
    stage.send(body, socket.local_addr().unwrap().is_ipv6());
    receives(socket, shunt, body);
}

#[track_caller]
fn receives(socket: &UdpSocket, shunt: &Shunt, body: &[u8]) {
    let mut buffer = vec![0; 70_000];
    let n = socket.recv(&mut buffer).unwrap_or_else(|e| {
        panic!("a datagram of {} bytes does not arrive: {e}; {}", body.len(), shunt.said())
    });
    assert!(buffer[..n] == *body, "other bytes");
}

#[test]
fn the_kernel_gets_datagrams_whole_through_a_device() {
    for device in ["tap7", "tun7"] {
        let Some(stage) = Stage::new() else { return };
        let sockets = [stage.listen(), stage.listen_by(true)];
        let mut shunt = stage.shunt(&["--xdp", "--to", device, "--stats", "0", "--json"]);
        stage.trust(device);
        for (i, size) in [65_000, 2000, 30_000, 500].into_iter().enumerate() {
            for socket in &sockets {
                arrives(&stage, socket, &shunt, &payload(i, size));
            }
        }
        arrives(&stage, &sockets[0], &shunt, &payload(9, 65_507));
        let seen = [stage.snmp("ReasmReqds"), stage.fragments6()];
        assert_eq!(seen, [0, 0], "{device}: the kernel has seen fragments");
        // Those that are no fragments do not go this way.
        assert_eq!(Told::of(&shunt.stop()).get("output_sent"), 7, "{device}");
    }
}

#[test]
fn without_xdp_the_kernel_gets_datagrams_a_second_time() {
    let Some(stage) = Stage::new() else { return };
    let socket = stage.listen();
    let mut shunt = stage.shunt(&["--to", "tap7", "--stats", "0", "--json"]);
    stage.trust("tap7");
    let body = payload(1, 20_000);
    arrives(&stage, &socket, &shunt, &body);
    receives(&socket, &shunt, &body);
    assert_eq!(stage.snmp("ReasmOKs"), 1, "once by its own fragments");
    assert_eq!(Told::of(&shunt.stop()).get("output_sent"), 1);
}

#[test]
fn a_file_and_a_device_both_get_each_datagram() {
    let Some(stage) = Stage::new() else { return };
    let socket = stage.listen();
    let file = stage.path("out.pcapng");
    let to_file = ["--write", file.to_str().unwrap(), "--count", "5", "--json", "--stats", "0"];
    let mut shunt = stage.shunt(&[&["--xdp", "--to", "tun7"], &to_file[..]].concat());
    stage.trust("tun7");
    let bodies: Vec<Vec<u8>> = (0..5).map(|i| payload(i, 3000 + i * 9000)).collect();
    bodies.iter().for_each(|body| arrives(&stage, &socket, &shunt, body));
    shunt.ends(LIMIT);
    let written: Vec<Vec<u8>> = capture(&file).iter().map(|packet| packet[28..].to_vec()).collect();
    assert!(written == bodies, "{} in the file", written.len());
    let told = Told::of(&shunt.said());
    assert_eq!(["output_sent", "output_unwritten"].map(|name| told.get(name)), [5, 0]);
}

/// Whoever makes a device gets the settings of new ones, which are strict on many systems; and for all of them.
#[test]
fn what_the_host_would_drop_is_told_with_the_command_that_helps() {
    for (all, new, value) in [(1, 0, "is 1"), (0, 1, "is 1"), (0, 2, "is 2 and it has no address")]
    {
        let Some(stage) = Stage::new() else { return };
        stage.set_rp_filter("all", all);
        stage.set_rp_filter("default", new);
        let socket = stage.listen();
        let shunt = stage.shunt(&["--xdp", "--to", "tap7", "--stats", "0"]);
        let said = shunt.said();
        assert!(said.contains(&format!("tap7, whose rp_filter {value}; ")), "{all}, {new}: {said}");
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        stage.send(&payload(1, 5000), false);
        let came = socket.recv(&mut [0; 9000]);
        assert!(came.is_err(), "{all}, {new}: it is not dropped: the warning is wrong");
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let line = said.split("to let them in: ").nth(1).and_then(|rest| rest.lines().next());
        stage.types(line.unwrap()).unwrap();
        arrives(&stage, &socket, &shunt, &payload(2, 5000));
    }
}

#[test]
fn where_nothing_is_dropped_nothing_is_told() {
    let Some(stage) = Stage::new() else { return };
    stage.set_rp_filter("all", 0);
    stage.set_rp_filter("default", 0);
    let mut shunt = stage.shunt(&["--xdp", "--to", "tap7", "--stats", "0"]);
    assert!(!shunt.stop().contains("rp_filter"));
    stage.set_rp_filter("all", 1);
    let mut shunt = stage.shunt(&["--xdp", "--stats", "0"]);
    assert!(!shunt.stop().contains("rp_filter"), "there is no device");
}

/// Else the host would get nothing at all: with `--xdp` it does not see the fragments either.
#[test]
fn a_device_that_goes_or_goes_down_ends_it() {
    let anew = "ip tuntap add tap7 mode tap && ip link set tap7 up";
    for (xdp, line, why) in [
        (&["--xdp"][..], "ip link delete tap7", "tap7 has gone"),
        (&["--xdp"], &format!("ip link delete tap7 && {anew}"), "tap7 has gone"),
        (&["--xdp"], "ip link set tap7 down", "tap7 is down"),
        (&[], "ip link set tap7 down", "tap7 is down"),
    ] {
        let Some(stage) = Stage::new() else { return };
        let socket = stage.listen();
        let mut shunt = stage.shunt(&[&["--to", "tap7", "--stats", "0"], xdp].concat());
        stage.types(line).unwrap();
        let said = shunt.fails_within(LIMIT);
        assert!(said.contains(why), "{line}: {said}");
        let body = payload(1, 20_000);
        stage.send(&body, false);
        let mut buffer = vec![0; 70_000];
        let len = socket.recv(&mut buffer).unwrap();
        assert!(buffer[..len] == body, "the host has its fragments again");
    }
}

/// As by the policy of a device manager, which comes a moment after the device. To an old address frames are another
/// host's, and dropped without a word.
#[test]
fn an_address_of_the_device_that_changes_is_followed() {
    let Some(stage) = Stage::new() else { return };
    let socket = stage.listen();
    let mut shunt = stage.shunt(&["--xdp", "--to", "tap7", "--stats", "0"]);
    stage.trust("tap7");
    let body = payload(1, 20_000);
    arrives(&stage, &socket, &shunt, &body);
    stage.types("ip link set tap7 address 02:00:00:00:00:42").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    // It looks once a second.
    eventually("it arrives again", || {
        stage.send(&body, false);
        socket.recv(&mut [0; 30_000]).is_ok_and(|len| len == body.len())
    });
    shunt.stop();
}

#[test]
fn a_device_may_be_renamed() {
    let Some(stage) = Stage::new() else { return };
    let socket = stage.listen();
    let mut shunt = stage.shunt(&["--xdp", "--to", "tap7", "--stats", "0"]);
    let down = "ip link set tap7 down && ip link set tap7 name other && ip link set other up";
    stage.types(down).unwrap();
    stage.trust("other");
    // It looks once a second.
    std::thread::sleep(Duration::from_secs(3));
    arrives(&stage, &socket, &shunt, &payload(1, 20_000));
    shunt.stop();
}

use super::*;

const LOOPBACK: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x7f00, 1);

#[track_caller]
fn allows(include: &str, exclude: &str, port: u16, program: &str) -> bool {
    let mut limits = Limits::default();
    limits.set("include", include).unwrap();
    limits.set("exclude", exclude).unwrap();
    limits.allows(port, [LOOPBACK, LOOPBACK], program, End::Client)
}

#[test]
fn rules() {
    assert!(allows("", "", 80, "nginx"));
    assert!(allows("port:80", "", 80, "nginx"));
    assert!(!allows("port:81", "", 80, "nginx"));
    assert!(allows("port:1-100,program:wrk", "", 80, "nginx"));
    assert!(!allows("port:1-100", "program:nginx", 80, "nginx"));
    assert!(allows("addr:127.0.0.0/8", "", 80, "x"));
    assert!(!allows("addr:10.0.0.0/8", "", 80, "x"));
    assert!(!allows("", "addr:::ffff:127.0.0.1", 80, "x"));
    assert!(!allows("", "addr:0.0.0.0/0", 80, "x"));
    assert!(allows("end:client", "", 80, "x"));
    assert!(allows("", "end:server", 80, "x"));
    assert!(!allows("end:server", "", 80, "x"));
    assert!(!allows("port:80", "end:client", 80, "x"));
    assert!(allows("program:a-very-long-program-name", "", 1, "a-very-long-pro"));
}

#[test]
fn routed_networks() {
    let mut limits = Limits::default();
    let is_routed = |limits: &Limits, text: &str| {
        let ip: IpAddr = text.parse().unwrap();
        limits.is_routed(mapped(ip))
    };
    assert!(!is_routed(&limits, "10.96.0.1"));
    limits.set("routed", "10.96.0.0/12, fd00:1::/32,192.0.2.7").unwrap();
    for (address, is) in [
        ("10.96.0.1", true),
        ("10.111.255.255", true),
        ("10.112.0.0", false),
        ("fd00:1::7", true),
        ("fd00:2::7", false),
        ("192.0.2.7", true),
        ("192.0.2.8", false),
    ] {
        assert_eq!(is_routed(&limits, address), is, "{address}");
    }
    limits.set("routed", "").unwrap();
    assert_eq!(limits, Limits::default());
}

#[test]
fn bad_settings_say_what_would_be_right_and_change_nothing() {
    for (name, value) in [
        ("spin_us", "1001"),
        ("spin_us", "-1"),
        ("nap_us", "10000001"),
        ("ring_min", "15K"),
        ("ring_max", "8M"),
        ("ring_min", "48K"),
        ("memory_max", "1K"),
        ("memory_max", "99999999999999G"),
        ("include", "prot:80"),
        ("include", "port:90-80"),
        ("include", "addr:1.2.3.4/33"),
        ("exclude", "program:"),
        ("exclude", "program:/usr/bin/redis-cli"),
        ("exclude", "end:both"),
        ("routed", "10.96.0.0/33"),
        ("routed", "services"),
        ("log", "loud"),
        ("dir", "relative"),
        ("enabled", "maybe"),
        ("spin", "1"),
    ] {
        let mut limits = Limits::default();
        let error = limits.set(name, value).unwrap_err();
        assert!(!error.why.is_empty(), "{name}");
        assert_eq!(limits, Limits::default(), "{name}");
    }
}

#[test]
fn a_ring_cannot_start_larger_than_it_may_grow() {
    let mut limits = Limits::default();
    limits.set("ring_min", "256K").unwrap();
    limits.set("ring_max", "64K").unwrap();
    assert!(limits.checked().is_err());
}

#[test]
fn each_setting_is_known_by_its_name() {
    for s in SETTINGS {
        let value = match s.name {
            "enabled" => "on",
            "spin_us" | "nap_us" => "7",
            "spare_short" => "off",
            "ring_min" | "ring_max" => "64K",
            "memory_max" => "64M",
            "include" | "exclude" => "port:1",
            "routed" => "10.96.0.0/12",
            "log" => "debug",
            "dir" | "log_file" => "/x",
            other => panic!("{other} has no example here"),
        };
        Limits::default().set(s.name, value).unwrap();
        assert_eq!(s.env, format!("SHUNT_{}", s.name.to_uppercase()));
    }
}

#[test]
fn what_is_shown_can_be_set() {
    let written = [
        ("enabled", "off"),
        ("spin_us", "7"),
        ("nap_us", "0"),
        ("ring_min", "32K"),
        ("ring_max", "1M"),
        ("memory_max", "8G"),
        ("include", "port:80,port:1-2,addr:10.0.0.0/8,addr:fe80::/10,program:x,end:client"),
        ("exclude", "addr:192.0.2.1,addr:::1,end:server"),
        ("routed", "10.96.0.0/12,::/0"),
        ("spare_short", "off"),
        ("log", "debug"),
        ("log_file", "/y"),
        ("dir", "/x"),
    ];
    assert_eq!(written.map(|(name, _)| name).to_vec(), names());
    let mut limits = Limits::default();
    for (name, value) in written {
        limits.set(name, value).unwrap();
        assert_eq!(limits.show(name).as_deref(), Some(value), "{name}");
    }
    let usual = SETTINGS.iter().filter_map(|s| Some((s.name, Limits::default().show(s.name)?)));
    let mut again = Limits::default();
    for (name, value) in usual {
        again.set(name, &value).unwrap();
    }
    assert_eq!(again, Limits::default());
    assert_eq!(again.show("no_such"), None);
}

fn names() -> Vec<&'static str> {
    SETTINGS.iter().map(|setting| setting.name).collect()
}

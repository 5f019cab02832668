//! What is left when a server dies.

use std::process::Command;

use serde_json::json;
use turnkeep_tests::{
    app_server::{AppServer, PATIENCE},
    codex::{CodexHome, VERSIONS, codex},
    model::{self, Model},
    processes,
};

#[test]
fn launcher_is_the_version_it_says() {
    for version in VERSIONS {
        let output = Command::new(codex(version))
            .arg("--version")
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            format!("codex-cli {version}")
        );
    }
}

#[test]
fn server_outlives_its_launcher_but_not_the_kill_of_its_family() {
    for version in VERSIONS {
        let model = Model::queued([model::hang()]);
        let home = CodexHome::new(&model);
        let mut server = AppServer::initialized(&codex(version), &home);
        let thread = server.start_thread(&home, json!({}));
        server.start_turn(&thread, "hold");
        model.wait_for_requests(1, PATIENCE);

        let family = processes::family(server.pid());
        let native = family.iter().find(|p| p.comm == "codex").unwrap();
        assert_eq!(native.pgid, server.pid(), "{version}: {family:?}");

        let launcher = processes::Proc::find(server.pid()).unwrap();
        processes::kill(&launcher);
        assert_eq!(processes::wait_gone(&[launcher], PATIENCE), []);
        // Its input is still open and its turn still runs, so it has no reason to end.
        server.request("thread/loaded/list", json!({}));
        assert!(processes::alive(native), "{version}");

        assert_eq!(server.kill(), [], "{version}");
        assert_eq!(processes::wait_gone(&family, PATIENCE), [], "{version}");
    }
}

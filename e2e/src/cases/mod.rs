//! The cases of the oracle: what a program can see of a connection, one function a case.
//!
//! Each writes lines of results. A case is right when its lines are the same over kernel TCP and
//! under Shunt, at either end of the connection.

pub mod corners;
pub mod crowds;
pub mod descriptors;
pub mod early;
pub mod entries;
pub mod forking;
pub mod jumps;
pub mod late;
pub mod names;
pub mod processes;
pub mod rarely;
pub mod readiness;
pub mod remains;
pub mod seams;
pub mod shared_sets;
pub mod signals;
pub mod states;
pub mod threads;
pub mod transfer;
pub mod unread;
pub mod uring;
pub mod v6;
pub mod waits;

use crate::stage::Stage;

/// Lists each case once, by module, and hands the list to a macro.
#[macro_export]
macro_rules! oracle_cases {
    ($with:ident) => {
        $with! {
            states {
                established fresh_socket idle_listener connect_refused connect_states
                connect_to_full_backlog connect_unspec connect_unspec_cut_short connect_asked_again peer_fin peer_fin_with_bytes_queued
                both_fin_peer_first both_fin_we_first reset reset_then_send_twice bytes_then_reset
                close_with_unread_bytes peer_closes_we_send_twice shut_rd shut_wr shut_rdwr
                peer_shuts_rd peer_shuts_rdwr reset_in_accept_queue listener_shut_down fd_misuse
                linger_zero_seen_by_peer linger_seconds linger_when_full options_of_a_live_connection tcp_info
                accept_inherits accept_inherits_in_memory accept_flags names_of_the_ends killed_without_a_word
            }
            transfer {
                zero_lengths zero_length_recv_blocks receive_address peek peek_across_writes
                peek_waitall_times_out_once trunc
                waitall_times_out waitall_until_the_end waitall_whole waitall_dontwait
                dontwait_when_empty low_water_mark low_water_mark_blocks receive_timeout
                send_timeout user_timeout receive_timeout_does_not_limit_sending queue_sizes queue_of_much urgent urgent_inline urgent_none vectors too_many_vectors
                messages many_messages many_messages_block preadv2_pwritev2 nowait_read sendfile sendfile_stops_midway
                sendfile_limits splice_in splice_in_much splice_out splice_that_does_not_wait
                sendfile_from_what_is_no_file sendfile_into_a_pipe tee_and_others_refuse bad_pointers full_and_drained room_behind_an_end
                large_both_ways large_one_way_blocking errno_is_left_alone syscall_function more_flag
                zero_copy_sending zero_copy_unasked kernel_tls_refused_or_not
            }
            uring {
                io_uring_is_refused io_uring_by_library io_uring_by_other_names io_uring_for_files
                io_uring_submits io_uring_submits_for_events io_uring_submits_with_a_limit
                io_uring_enters io_uring_enters_with_more io_uring_registers io_uring_registers_with_tags
                io_uring_registers_anew io_uring_registers_anew_with_tags io_uring_registers_by_hand
                io_uring_registers_in_the_ring io_uring_around_a_socket io_uring_splices io_uring_closes
            }
            entries {
                asynchronous_64 submitted_to_the_kernel vmsplice_by_a_pipe more_than_there_is asked_and_mapped
                stream_of_another_file all_streams_closed moved_by_number awaited_by_number made_by_number
                time_left_by_number
                signals_and_files_beside epoll_of_nothing listens_without_a_name connecting_already
                other_protocols fetched_by_a_process options_set_and_read nodelay_and_cork owned_by_other_names
                forked_without_handlers ended_by_each_name terminal_over_a_connection somebody_else
                sent_by_a_destructor
            }
            v6 { mapped_addresses }
            names {
                fortified_names underscored_names underscored_forks underscored_connect large_file_names each_exec exec_of_many each_start
                daemon_goes_on
            }
            waits {
                cancel_full_send cancel_accept cancel_connect cancel_readiness cancel_what_does_not_wait close_during_send
                close_during_accept close_during_connect close_during_readiness close_during_epoll_wait
            }
            signals {
                sigpipe eintr_recv eintr_recv_restarts eintr_recv_with_timeout eintr_send
                eintr_each_send eintr_each_receive eintr_accept_and_connect eintr_waitall_partial eintr_poll eintr_select eintr_epoll ppoll_mask pselect_mask
                epoll_pwait_mask handler_uses_the_connection handler_uses_the_connection_at_any_moment async_io ignored_signal_wakes_nobody
                filtered_by_itself
            }
            readiness {
                poll_sets poll_waits select_sets select_waits select_bad_fd epoll_level epoll_edge
                epoll_edge_out epoll_edge_low_water_mark epoll_edge_send_buffer epoll_edge_reset epoll_oneshot epoll_no_events epoll_errors
                epoll_closed_duplicate epoll_number_of_another epoll_taken_out_and_passed epoll_dup2_over epoll_nested epoll_nested_with_something_there epoll_by_another_number
                epoll_many_in_turn epoll_maxevents_rotates
                epoll_pwait2 epoll_added_with_bytes epoll_two_sets epoll_data_verbatim
                epoll_level_out mixed_poll mixed_epoll mixed_select epoll_closed_fd_forgets
                poll_without_rdhup epoll_one_event_each many_small_wakeups
            }
            crowds {
                many_armed_anew
                room_beside_what_is_always_ready plain_beside_what_is_always_ready one_event_at_a_time set_passed_on
            }
            seams {
                looks_over_the_switch demoted_with_unread_on_both_sides demoted_one_after_the_other
                waitall_over_a_demotion_and_reset sent_whole_over_a_demotion many_messages_up_to_one_that_is_cut
                splice_stops_at_urgent_data sent_to_a_peer_that_was_urgent_and_has_ended
                shut_rd_first_of_all reset_behind_the_end no_reset_after_both_ends
                recvmmsg_tells_errors_first error_before_the_pipe_breaks reset_told_to_a_child
                own_shutdown_is_an_edge one_shot_over_a_demotion watched_under_a_closed_number
                set_shared_with_bytes_unread passed_to_ourselves_after_the_end asynchronous
                dprintf_fortified send_timeout_at_the_seams low_water_mark_and_urgent_data
                back_to_tcp_behind_a_full_socket
            }
            corners {
                signals_for_bytes signals_of_a_listener low_water_mark_at_any_time peek_offset peek_offset_off
                time_stamps time_stamps_unseen time_stamps_fine time_stamps_new left_in_queue
                left_in_queue_counted left_in_queue_of_a_listener_that_was_passed
                many_messages_with_a_limit
                epoll_nested_deep select_of_high_numbers select_with_the_limit_as_number
                sent_to_a_peer_that_was_killed
            }
            rarely {
                reuseport_of_two fast_open number_closed_past_us bytes_taken_past_us control_data_to_send
                truncated_addresses connected_to_itself options_for_bytes numbers_of_the_library
                numbers_of_calls_that_go_on full_table_of_numbers
                close_range_unshares ended_quickly options_cut_short waits_of_centuries
                forked_by_number memory_locked_in_turn addresses_limited
            }
            jumps {
                jump_out_of_recv jump_out_of_waitall jump_out_of_poll jump_out_of_select jump_out_of_send jump_out_of_the_first_send
                jump_out_of_epoll jump_before_the_first_byte jump_at_any_moment
            }
            early {
                met_request_and_answer met_we_speak_first met_edges met_streams met_and_closed
                met_and_back_to_tcp met_after_a_move met_after_one_shot met_after_one_shot_for_the_end met_with_bytes_on_the_way
            }
            descriptors {
                dup_shares dup2_over_connection dup3_and_fcntl_dup fcntl_dup_on_to_stdio made_at_stdio close_ranges close_from
                number_reused nonblock_shared getfl fionbio fdopen_stream fdopen_with_bytes_queued
                stdio_dprintf limit_reached
            }
            processes {
                fork_child_continues fork_parent_continues fork_both_read fork_shutdown
                fork_nonblock fork_epoll_shared fork_epoll_edges fork_epoll_beside_others fork_epoll_once
                fork_killed_sharer fork_exit_with_unread
                fork_many_children exec_with_library exec_without_library exec_beside_a_guarded_peer exec_cloexec
                exec_by_itself exec_by_itself_without_library exec_fails vfork_exec_inetd cloned_child_closes posix_spawn_inetd
                posix_spawn_of_a_cloexec_connection system_inherits
                pass_to_process_with_library pass_to_process_without_library
                pass_with_bytes_queued pass_in_flight pass_and_keep accept_in_forked_workers
                exclusive_wakes_one exclusive_listener_wakes_one told_in_sets_of_their_own told_each_in_its_own_way full_and_unread_beside_a_child
            }
            unread {
                unread_level unread_edge unread_poll unread_select unread_blocking unread_is_no_reason_to_wake
                unread_among_many unread_in_a_shared_set unread_and_closed unread_and_killed_level unread_and_killed_edge
                unread_and_killed_poll unread_and_killed_select unread_and_killed_blocking
            }
            shared_sets {
                told_once_of_what_was_there waits_without_a_descriptor waits_for_what_another_has_made
                waits_late_for_what_another_has_made told_while_both_wait told_once_among_three room_is_told_once
                room_is_told_whoever_sends told_of_what_is_put_in armed_once_and_told_of_something_else
            }
            remains {
                left_to_stdio left_to_a_program much_left_to_a_program left_to_a_child left_to_nobody left_to_both
                left_while_a_child_reads left_to_a_program_that_is_not left_and_watched_once
                left_and_watched left_and_passed passed_with_urgent_data passed_over_the_switch
                passed_beyond_what_a_socket_holds passed_while_a_thread_reads passed_while_shared
            }
            forking {
                fork_during_recv fork_during_recv_and_closed fork_during_recv_child_goes_on fork_and_then_much fork_during_other_waits
                fork_during_epoll_wait fork_among_busy_threads forks_that_fail
            }
            late {
                late_beside_poll late_beside_poll_for_end late_beside_poll_of_two late_waitall_and_reset
                late_beside_select late_beside_mixed_poll late_beside_epoll late_beside_recv
                late_beside_waitall late_waitall_in_parts late_beside_peek late_one_shot late_one_shot_first late_one_shot_armed
                late_and_forked late_and_forked_sending late_shut_beside_send late_receive_timeouts
            }
            threads {
                close_during_recv duplicate_closed_during_recv shutdown_during_recv two_receivers signals_beside_another_thread two_senders_whole
                cancel_blocked_recv cancel_takes_nothing epoll_two_waiters epoll_two_waiters_that_do_not_read
                epoll_room_beside_unread
                epoll_changed_while_waiting epoll_ended_by_other_threads wait_in_thread_send_in_main dup2_during_recv closed_as_calls_begin
            }
        }
    };
}

/// A case: its name and what it does.
pub type Case = (&'static str, fn(&mut Stage));

macro_rules! table {
    ($($module:ident { $($case:ident)* })*) => {
        /// All of them.
        pub const CASES: &[Case] = &[$($((stringify!($case), $module::$case),)*)*];
    };
}
oracle_cases!(table);

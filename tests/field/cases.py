# ruff: noqa: E501 - one line a case, so that everybody can add to his own
"""Every field case and how it is shown: one line each, sorted by id.

The columns are: id | cpu or gpu (whether it can be reproduced without a GPU) | title | how it is
shown. That is node ids of tests, relative to tests/, with blanks between them, or a verdict that
says why it is not shown and what gpuckpt does instead, or both, the verdict last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TABLE: Final = """
C01 | cpu | A supervisor starts a second copy when the dump ends the job      | root/test_plan_world.py::test_a_shell_that_starts_another_copy unit/flow/test_plan_world.py::test_who_watches unit/flow/test_plan_world.py::test_units_of_systemd field/test_after.py::test_what_a_restore_brings_back_and_what_not
C02 | cpu | The step or unit is cleaned up although the job is back           | root/test_jobs.py::test_wait_ends_with_the_jobs_own_status root/test_jobs.py::test_wait_passes_signals_on field/test_return.py::test_in_the_group_of_the_restore
C03 | cpu | Whose child a restored job is                                     | field/test_return.py::test_again_and_again root/test_jobs.py::test_wait_ends_with_the_jobs_own_status root/test_plan_world.py::test_a_job_that_ends_with_its_parent
C04 | gpu | Hooks and mounts of the NVIDIA container stack                    | unit/flow/test_plan.py::test_a_container_is_named unit/tools/test_host.py::test_containers_are_recognised_by_their_groups
C05 | cpu | Docker containers                                                 | unit/flow/test_plan.py::test_a_container_is_named unit/tools/test_host.py::test_containers_are_recognised_by_their_groups verdict: No Docker where the tests run, so it is shown on recorded control groups.
C07 | gpu | A server of many processes, few of them on the GPU                | unit/flow/test_jobs.py::test_the_root_of_a_job unit/flow/test_jobs.py::test_workers_of_one_launcher_are_one_job cli/test_look.py::test_a_plan_of_a_healthy_job_fits_on_a_screen cli/test_look.py::test_a_plan_of_too_many_processes_is_cut_with_a_count
C09 | gpu | Health checks and rendezvous run out during the pause             | unit/flow/test_plan_gpu.py::test_heartbeats_against_the_pause unit/flow/test_plan_gpu.py::test_ranks
D01 | cpu | io_uring, mapped or only open                                     | root/test_plan_root.py::test_criu_agrees[io_uring] unit/flow/test_plan.py::test_io_uring_by_descriptor_and_by_mapping
D03 | cpu | Deleted open file above the limit                                 | root/test_plan_root.py::test_criu_agrees[big ghost] unit/flow/test_plan.py::test_deleted_files_up_to_the_limit unit/flow/test_plan.py::test_what_criu_has_to_be_told root/test_plan_command.py::test_what_options_lift_is_lifted_by_the_next_line
D04 | cpu | Library replaced under a running job                              | root/test_held_root.py::test_a_library_replaced_under_the_job root/test_held_root.py::test_a_library_replaced_on_an_overlay
D05 | cpu | File locks                                                        | root/test_plan_root.py::test_criu_agrees[lock] root/test_held_root.py::test_all_kinds_of_locks_come_along root/test_held_root.py::test_a_lock_that_somebody_outside_has_too root/test_held_root.py::test_a_lock_that_somebody_outside_waits_for root/test_held_root.py::test_a_lock_that_somebody_takes_meanwhile unit/flow/test_plan.py::test_what_criu_has_to_be_told
D07 | cpu | Connected TCP                                                     | root/test_plan_root.py::test_criu_agrees[tcp] root/test_peers_root.py::test_a_local_peer_is_named root/test_peers_root.py::test_a_client_that_nobody_has_accepted unit/flow/test_tcp.py::test_connections_that_lead_out_need_a_decision root/test_tcp.py::test_a_tree_that_talks_to_itself root/test_tcp.py::test_a_peer_outside_needs_a_word unit/flow/test_tcp.py::test_real_connections_inside_the_tree
D08 | cpu | The firewall tool that CRIU would use is missing                  | field/test_return.py::test_connections_without_a_firewall_tool
D09 | cpu | Unix stream socket to somebody outside                            | unit/flow/test_plan_real.py::test_a_socket_pair_with_us unit/flow/test_plan_real.py::test_a_server_s_name_is_told field/test_refusals.py::test_all_blockers_of_a_stranger_on_an_unfit_host
D10 | cpu | Output goes to the journal or a display server                    | unit/flow/test_plan.py::test_unix_sockets_to_the_outside unit/flow/test_plan_places.py::test_well_known_servers root/test_peers_root.py::test_a_datagram_socket_finds_its_server_again
D11 | cpu | POSIX semaphores in /dev/shm                                      | root/test_plan_root.py::test_posix_semaphores_need_a_link root/test_carry.py::test_jobs_with_semaphores_wherever_and_however_often
D14 | cpu | Descriptors CRIU has no code for                                  | root/test_plan_root.py::test_a_device_that_criu_does_not_know root/test_kinds.py::test_refused_as_criu_would root/test_kinds.py::test_what_criu_brings_back_is_let_through unit/flow/test_plan_places.py::test_a_kind_that_nobody_has_met_is_refused field/test_refusals.py::test_ordinary_things_opened_in_a_way_of_their_own
D16 | cpu | Not a session leader                                              | root/test_jobs.py::test_a_job_on_a_terminal unit/flow/test_plan_real.py::test_a_job_of_a_shell
D17 | cpu | A pane of tmux or screen                                          | root/test_plan_world.py::test_a_pane_of_tmux unit/flow/test_plan_world.py::test_who_watches unit/flow/test_plan.py::test_terminals_warn_once
D18 | cpu | A debugger holds one of the threads                               | root/test_plan_root.py::test_threads_are_checked_for_tracers
D20 | cpu | Nested pid namespace                                              | root/test_plan_root.py::test_a_nested_pid_namespace
D21 | cpu | Another mount namespace                                           | root/test_plan_root.py::test_namespaces_of_its_own[-m-mnt]
D22 | cpu | NFS that squashes root                                            | unit/tools/test_places.py::test_a_mapped_file_that_root_may_not_open unit/flow/test_plan_places.py::test_a_server_that_squashes_root verdict: No NFS where the tests run, so it is shown on recorded /proc text.
D23 | cpu | Deleted files on NFS                                              | unit/flow/test_plan_places.py::test_files_deleted_on_nfs verdict: No NFS where the tests run, so it is shown on recorded names.
D25 | cpu | Guard pages that CRIU cannot see                                  | unit/flow/test_plan_places.py::test_guard_pages_of_kernels_that_hide_them field/test_refusals.py::test_guard_pages_of_this_kernel_are_seen verdict: Those kernels are not at hand, and from outside nobody can tell whether a job has guard pages, so that it is a warning.
D26 | cpu | The vDSO of a newer kernel                                        | root/test_command_line.py::test_the_doctor_tries_it_out unit/tools/test_criulog.py::test_known_failures_are_translated
D27 | cpu | Not root                                                          | unit/flow/test_plan.py::test_a_missing_capability_is_named root/test_command_line.py::test_the_doctor_tells_all_that_is_missing field/test_refusals.py::test_all_blockers_of_a_stranger_on_an_unfit_host
D28 | cpu | An "Error" line that is none                                      | unit/tools/test_criulog.py::test_known_failures_are_translated field/test_refusals.py::test_errors_of_a_run_that_succeeded root/test_criu_ends.py::test_a_refused_dump_names_process_and_object
D30 | cpu | A wrapper's exit code                                             | field/test_refusals.py::test_a_wrapper_around_criu
D32 | cpu | AppArmor or SELinux blocks the injected code                      | unit/flow/test_plan_world.py::test_security_labels verdict: No security module where the tests run, so it is shown on recorded labels.
G01 | gpu | NVML leftovers on old drivers                                     | unit/flow/test_plan.py::test_drivers_that_are_too_old unit/flow/test_plan.py::test_gpu_files_without_cuda flow/test_dump.py::test_a_device_left_open_ends_the_dump_by_name unit/flow/test_plan_gpu.py::test_drivers
G02 | gpu | The lock kills a process that unloaded NVML                       | unit/tools/test_cuda.py::test_a_process_that_the_lock_kills_is_not_called_a_timeout root/test_fake_gpu.py::test_a_job_that_the_driver_killed_is_not_called_running unit/flow/test_plan_gpu.py::test_traces_of_gpu_state unit/flow/test_refusals.py::test_a_process_that_died_is_never_called_a_timeout
G03 | gpu | Managed memory                                                    | gpu/test_dump.py::test_managed_memory_is_refused gpu/test_cuda.py::test_managed_memory_is_refused_and_the_job_runs_on unit/flow/test_plan_gpu.py::test_traces_of_gpu_state unit/flow/test_refusals.py::test_each_error_of_each_call unit/flow/test_impossible.py::test_a_dump_is_refused_by_the_name_in_the_table
G04 | gpu | CUDA IPC between processes                                        | unit/flow/test_plan.py::test_cuda_ipc_says_who_exports unit/flow/test_plan_gpu.py::test_cuda_ipc_that_somebody_uses unit/flow/test_impossible.py::test_a_dump_is_refused_by_the_name_in_the_table
G05 | gpu | One locked rank makes calls on its peers hang                     | unit/tools/test_cuda.py::test_all_processes_are_acted_on_at_the_same_time unit/tools/test_cuda.py::test_a_lock_that_runs_out_of_time_says_where_everyone_is unit/tools/test_cuda.py::test_a_call_that_hangs_is_reported_and_can_be_gone_on_from unit/flow/test_plan_gpu.py::test_ranks root/test_ranks_root.py::test_every_step_is_taken_by_all_ranks_at_the_same_time root/test_ranks_root.py::test_whatever_one_rank_meets_the_others_run_on unit/flow/test_rounds.py::test_one_that_was_never_held_is_told_from_those_that_wait_for_each_other
G06 | gpu | A job kind that cannot be restored on these GPUs                  | flow/test_rehearse.py::test_in_place_nothing_is_written flow/test_rehearse.py::test_a_step_back_that_fails_once_is_taken_again root/test_rehearse.py::test_in_place_and_with_a_dump gpu/test_rehearse.py::test_training_is_bitwise_equal
G07 | gpu | All locks before anything is frozen                               | unit/flow/test_plan.py::test_stopped_processes root/test_plan_root.py::test_a_frozen_control_group flow/test_dump.py::test_a_process_that_starts_cuda_late_is_locked_too flow/test_ranks.py::test_a_newcomer_of_a_round_that_failed_is_held_in_the_next
G09 | gpu | The first call after the restore never returns                    | flow/test_target.py::test_a_job_that_cannot_run_is_told
G11 | gpu | MPS clients                                                       | unit/flow/test_plan.py::test_mps_clients_and_servers unit/flow/test_impossible.py::test_a_dump_is_refused_by_the_name_in_the_table
G12 | gpu | Forked workers hold the GPU's files                               | unit/flow/test_plan.py::test_gpu_files_without_cuda unit/flow/test_plan_gpu.py::test_who_holds_a_gpu_without_cuda unit/flow/test_plan_gpu.py::test_what_a_fork_has_left_with_children root/test_workers.py::test_children_that_a_process_with_cuda_has_forked root/test_workers.py::test_a_gpu_that_a_child_has_opened_for_itself
G13 | gpu | CRIU's own timeout in the middle of a lock                        | gpu/test_dump.py::test_a_long_kernel_times_out gpu/test_cuda.py::test_a_lock_gives_up_on_a_long_kernel_and_the_job_runs_on unit/flow/test_refusals.py::test_each_error_of_each_call flow/test_ranks.py::test_a_lock_in_vain_names_who_was_held_and_who_was_not unit/flow/test_rounds.py::test_all_tries_and_waits_together_take_no_longer_than_was_allowed
G15 | gpu | Locked or checkpointed by somebody before                         | root/test_fake_gpu.py::test_a_job_that_somebody_else_suspended_is_refused root/test_repair.py::test_locked_by_somebody_else gpu/test_repair.py::test_suspended_by_hand
G16 | gpu | The driver's caller is killed in mid-action                       | unit/tools/test_cuda.py::test_call_processes_are_deaf_to_signals_meant_for_us gpu/test_cuda.py::test_when_gpuckpt_is_killed_in_mid_checkpoint_the_job_runs_on faults/test_killed.py::test_a_dump_killed_at_every_call root/test_repair.py::test_locked_and_nobody_left gpu/test_repair.py::test_training_is_bitwise_equal_after_a_repair
G17 | gpu | The GPU is full when the state comes back                         | faults/test_restore.py::test_too_little_gpu_memory_is_refused_before_anything unit/tools/test_cuda_target.py::test_the_switch_never_restores_into_a_full_gpu flow/test_memory_guard.py::test_the_driver_is_not_asked_without_room flow/test_rehearse.py::test_memory_that_somebody_took gpu/test_rehearse.py::test_a_card_that_was_filled_meanwhile gpu/test_rehearse.py::test_a_card_that_is_full_before_a_restore unit/flow/test_refusals.py::test_each_error_of_each_call
G19 | gpu | Persistence mode is off                                           | unit/flow/test_plan.py::test_modes_count_on_the_gpus_in_use
G20 | gpu | Missing permission that looks like a driver bug                   | unit/flow/test_plan.py::test_a_missing_capability_is_named unit/flow/test_plan.py::test_other_namespaces_than_ours unit/tools/test_cuda_driver.py::test_a_driver_that_does_not_start_is_missing unit/flow/test_plan_world.py::test_what_the_host_forbids unit/flow/test_refusals.py::test_what_gpuckpt_lacks_comes_before_what_the_driver_says
G21 | gpu | A map of some GPUs only                                           | unit/image/test_gpuplan.py::test_naming_a_part_leaves_the_others_where_they_are property/test_gpu_plan.py::test_a_plan_is_a_permutation_and_always_the_same gpu/test_cuda.py::test_a_refused_map_changes_nothing root/test_gpu_map.py::test_to_the_other_gpu_and_to_another_host unit/flow/test_refusals.py::test_a_map_that_was_refused_changed_nothing
G22 | gpu | Another count, order or model of GPUs                             | unit/image/test_image_compare.py::test_gpu_count_model_memory_and_mig root/test_gpu_map.py::test_to_the_other_gpu_and_to_another_host unit/image/test_gpuplan.py::test_models_find_each_other unit/image/test_gpuplan.py::test_fewer_gpus_than_the_job_used unit/image/test_gpuplan.py::test_more_gpus_than_there_were
G23 | gpu | PCI bus ids of the old node                                       | unit/image/test_image_compare.py::test_another_bus_id_is_warned_of flow/test_gpu_map.py::test_a_job_that_is_on_another_gpu_than_planned_is_told
G25 | gpu | A profiler inside the job                                         | unit/flow/test_plan_gpu.py::test_profilers
G26 | gpu | Lock works, checkpoint does not exist here                        | root/test_fake_gpu.py::test_a_refusing_driver_leaves_the_job_running[checkpoint-operation not supported-gpu_step_failed] unit/flow/test_plan_gpu.py::test_other_processors unit/flow/test_refusals.py::test_each_error_of_each_call
G27 | gpu | Tool, plugin and driver of different ages                         | unit/tools/test_cuda_driver.py::test_a_driver_without_the_calls_is_missing unit/tools/test_cuda.py::test_a_named_program_that_cannot_be_used_says_so unit/flow/test_doctor.py::test_what_is_wrong_is_found
G28 | gpu | Iterative dumps of a CUDA process                                 | verdict: gpuckpt never makes a pre-dump: CRIU is run once, while the state is already in host memory.
G29 | gpu | gdrcopy's device                                                  | unit/flow/test_plan_places.py::test_devices
G30 | gpu | RDMA and UCX                                                      | unit/flow/test_plan_places.py::test_devices root/test_plan_root.py::test_criu_agrees[sysv]
G31 | gpu | Attaching the driver costs time per process                       | unit/flow/test_forecast.py::test_every_process_with_cuda_has_its_price
G32 | gpu | GPU bytes land in host memory                                     | unit/flow/test_plan.py::test_memory_for_the_gpus_bytes unit/tools/test_host.py::test_the_tightest_group_above_a_process_limits_it unit/flow/test_forecast.py::test_without_any_experience_everything_is_assumed
G33 | gpu | The restore thread cannot be found                                | root/test_fake_gpu.py::test_a_job_that_somebody_else_suspended_is_refused verdict: CRIU is always started with an empty plugin folder, so the CUDA state has one owner.
G34 | gpu | CRIU says restored, and the process is gone                       | field/test_order.py::test_a_process_that_is_gone_after_criu_said_restored
G35 | gpu | The resume never returns                                          | unit/tools/test_cuda.py::test_a_call_that_hangs_is_reported_and_can_be_gone_on_from root/test_rehearse.py::test_a_driver_that_fails_on_the_way_back root/test_rehearse.py::test_a_second_signal_tells_what_would_be_left
G36 | gpu | Ending a restored process takes the host down                     | faults/test_restore.py::test_every_call_of_a_restore faults/test_restore.py::test_a_failed_look_does_as_it_was_told gpu/test_dump.py::test_a_failed_probe_kills_without_harm unit/flow/test_plan_gpu.py::test_drivers
G37 | gpu | A library path meant for another C library                        | unit/tools/test_run.py::test_the_environment_is_short
O01 | cpu | First contact is in the maintenance window                        | root/test_command_line.py::test_the_doctor_tells_all_that_is_missing field/test_refusals.py::test_all_blockers_of_a_stranger_on_an_unfit_host root/test_plan_command.py::test_a_user_with_an_old_criu_hears_everything_at_once
O02 | cpu | One error at a time                                               | root/test_kinds.py::test_one_plan_names_everything root/test_plan_root.py::test_everything_at_once field/test_refusals.py::test_all_blockers_of_a_stranger_on_an_unfit_host root/test_plan_command.py::test_eight_things_at_once_are_all_named_and_nothing_is_touched
O03 | cpu | Errors that name the wrong layer                                  | unit/tools/test_criulog.py::test_known_failures_are_translated root/test_criu_ends.py::test_a_refused_dump_names_process_and_object root/test_criu_ends.py::test_refused_restores_name_what_is_in_the_way unit/flow/test_refusals.py::test_each_error_of_each_call
O04 | cpu | Slow storage inside the pause                                     | unit/flow/test_forecast.py::test_a_slow_disk_is_what_the_pause_is_made_of unit/flow/test_obstacles.py::test_the_host_s_own_troubles root/test_plan_command.py::test_what_options_lift_is_lifted_by_the_next_line
O05 | cpu | The operator interrupts                                           | root/test_trouble.py::test_a_signal_in_the_middle_of_a_dump faults/test_dump.py::test_every_call_of_a_dump faults/test_restore.py::test_every_call_of_a_restore faults/test_rehearse.py::test_every_call_of_a_rehearsal root/test_rehearse.py::test_the_terminal_goes_away_in_mid_dump root/test_rehearse.py::test_a_second_signal_tells_what_would_be_left
P01 | cpu | The disk fills up during the dump                                 | root/test_trouble.py::test_a_full_disk root/test_trouble.py::test_a_disk_that_fills_up_while_writing unit/flow/test_plan.py::test_space_for_the_image unit/flow/test_obstacles.py::test_the_host_s_own_troubles
P02 | cpu | CRIU is killed in the middle                                      | root/test_trouble.py::test_killed_in_the_middle_of_a_dump root/test_fake_gpu.py::test_gpuckpt_killed_while_criu_dumps root/test_repair.py::test_checkpointed_while_criu_streams
P03 | gpu | A process is left half-alive                                      | faults/test_dump.py::test_every_call_of_a_dump unit/test_errors.py::test_one_exit_code_means_one_fate_of_the_job unit/flow/test_refusals.py::test_a_lost_process_is_told_as_lost_and_the_others_go_on root/test_fake_gpu.py::test_a_job_that_the_driver_killed_is_not_called_running faults/test_killed.py::test_a_restore_killed_at_every_call root/test_repair.py::test_a_restore_killed_before_the_gpu_is_back
P04 | cpu | The dump is fine, the archive step fails                          | unit/image/test_image_stage.py::test_a_disk_that_fills_up_before_the_manifest faults/test_dump.py::test_every_call_of_a_dump root/test_trouble.py::test_a_disk_that_fills_up_while_writing
P06 | cpu | Memory that everybody may read                                    | unit/image/test_image_stage.py::test_an_image_is_for_its_owner_only_whatever_the_umask unit/image/test_image_store.py::test_others_who_could_write_it unit/flow/test_plan_real.py::test_environment_names_are_read_and_values_are_not field/test_refusals.py::test_memory_is_for_its_owner_only
P09 | cpu | CRIU floods its log                                               | field/test_order.py::test_a_criu_that_spins unit/tools/test_criulog.py::test_the_middle_of_a_flooded_log_is_left_out root/test_criu_ends.py::test_a_restore_that_hangs_ends_by_its_deadline_or_its_log unit/tools/test_criuwatch.py::test_a_log_is_cut_while_its_criu_is_ended
R01 | cpu | A pid or thread id is in use                                      | field/test_target.py::test_who_has_the_numbers unit/flow/test_target_rules.py::test_one_change_is_one_finding[group] field/test_strays.py::test_a_helper_that_left_the_tree
R02 | cpu | A zombie has the pid                                              | field/test_target.py::test_a_restore_that_failed_can_be_tried_again_at_once field/test_return.py::test_a_parent_that_does_not_wait_for_its_child unit/flow/test_target_rules.py::test_one_change_is_one_finding[zombie] unit/flow/test_target_rules.py::test_one_change_is_one_finding[init's zombie]
R04 | cpu | A port is in use                                                  | flow/test_target.py::test_a_taken_port_is_not_waited_for_and_nothing_can_force_it flow/test_target.py::test_closed_connections_are_waited_for_and_that_is_said flow/test_target.py::test_closed_connections_are_forgotten_and_that_is_said root/test_filters.py::test_closed_connections_are_forgotten field/test_target.py::test_who_has_the_port
R06 | cpu | A library of another build                                        | unit/image/test_image_compare.py::test_a_file_that_criu_would_refuse field/test_target.py::test_every_file_that_is_not_as_it_was
R07 | cpu | A file is missing on the target                                   | unit/image/test_image_compare.py::test_a_file_that_criu_would_refuse field/test_target.py::test_every_file_that_is_not_as_it_was field/test_strays.py::test_a_program_that_is_no_file
R08 | cpu | A file has another size                                           | root/test_trouble.py::test_a_changed_file_is_named unit/image/test_image_compare.py::test_a_log_that_grew_is_warned_of field/test_target.py::test_every_file_that_is_not_as_it_was field/test_target.py::test_a_log_that_grew_or_was_rotated_away
R10 | cpu | No terminal to give the job                                       | root/test_jobs.py::test_a_job_on_a_terminal
R11 | cpu | A semaphore's file is not on the target                           | root/test_carry.py::test_jobs_with_semaphores_wherever_and_however_often root/test_carry.py::test_files_of_others_are_left_alone unit/flow/test_target_rules.py::test_one_change_is_one_finding[linked] field/test_places.py::test_what_no_image_carries
R12 | cpu | The name for a ghost or remap file exists                         | unit/tools/test_criulog.py::test_known_failures_are_translated unit/flow/test_target_rules.py::test_one_change_is_one_finding[ghost] unit/flow/test_target_rules.py::test_one_change_is_one_finding[ghost's folder] unit/flow/test_target_rules.py::test_one_change_is_one_finding[its own name] field/test_places.py::test_what_no_image_carries
R15 | cpu | An old CRIU and a newer C library                                 | root/test_install_criu.py::test_what_is_too_old_is_replaced root/test_command_line.py::test_the_doctor_tries_it_out unit/tools/test_criulog.py::test_known_failures_are_translated
R16 | cpu | Dumped by one CRIU, restored by another                           | unit/image/test_image_compare.py::test_only_an_older_criu_is_refused unit/tools/test_criulog.py::test_known_failures_are_translated verdict: A second CRIU that is new enough is not at hand, so versions are compared as recorded.
R17 | cpu | Control groups                                                    | field/test_return.py::test_in_the_group_of_the_restore unit/tools/test_criulog.py::test_known_failures_are_translated
R19 | cpu | Time namespaces                                                   | field/test_return.py::test_again_and_again unit/flow/test_target_rules.py::test_one_change_is_one_finding[clocks] unit/tools/test_criulog.py::test_known_failures_are_translated
R20 | cpu | Privilege that only the restore misses                            | unit/flow/test_target_rules.py::test_one_change_is_one_finding[its rights] unit/flow/test_target_rules.py::test_one_change_is_one_finding[its bounds] unit/tools/test_criulog.py::test_known_failures_are_translated field/test_places.py::test_what_no_image_carries
R21 | cpu | Two restores at the same moment                                   | field/test_return.py::test_several_at_the_same_moment unit/tools/test_criulog.py::test_known_failures_are_translated
R22 | cpu | What was chosen at the dump is asked otherwise at the restore     | field/test_target.py::test_a_dump_s_choices_are_not_made_again
R23 | cpu | Half of the image was copied                                      | unit/image/test_image_store.py::test_every_bad_file_is_named_at_once unit/image/test_image_check.py::test_all_damage_is_found_at_once_and_named field/test_target.py::test_half_a_copy_is_told_by_the_names_of_its_files root/test_criu_ends.py::test_refused_restores_name_what_is_in_the_way
R24 | cpu | Too little memory at the restore                                  | unit/flow/test_target_rules.py::test_one_change_is_one_finding[ram] unit/tools/test_criulog.py::test_known_failures_are_translated unit/tools/test_criuend.py::test_a_task_that_the_kernel_ended field/test_places.py::test_what_no_image_carries
R25 | cpu | A restored task cannot be attached                                | root/test_criu_ends.py::test_a_tracer_that_is_faster_than_criu
R26 | gpu | Another driver on the target                                      | unit/image/test_image_compare.py::test_the_driver_must_be_the_same unit/flow/test_target_rules.py::test_one_change_is_one_finding[flavour]
S01 | cpu | A flipped bit restores as if fine                                 | root/test_trouble.py::test_one_flipped_bit_in_the_pages_ends_the_restore
S02 | cpu | A short page file makes CRIU spin                                 | root/test_trouble.py::test_a_pages_file_cut_short_is_refused_before_criu_starts field/test_order.py::test_a_criu_that_spins root/test_criu_ends.py::test_refused_restores_name_what_is_in_the_way root/test_criu_ends.py::test_a_restore_that_hangs_ends_by_its_deadline_or_its_log
S03 | cpu | Output went into a pipe of somebody outside                       | unit/flow/test_plan_real.py::test_output_into_our_pipe unit/flow/test_plan.py::test_pipes_to_the_outside field/test_success.py::test_output_into_a_pipe_that_nobody_reads_any_more field/test_after.py::test_what_a_restore_brings_back_and_what_not
S05 | cpu | The virtual environment is missing                                | unit/flow/test_target_rules.py::test_one_change_is_one_finding[venv] unit/flow/test_target_rules.py::test_one_change_is_one_finding[packages] field/test_places.py::test_a_python_that_has_not_imported_everything
S07 | cpu | Jupyter kernel                                                    | unit/flow/test_plan_world.py::test_jupyter_kernels_alone root/test_plan_world.py::test_a_kernel_without_its_server field/test_success.py::test_a_kernel_without_its_server
S08 | cpu | Restored, then dies                                               | root/test_plan_world.py::test_a_job_that_ends_with_its_parent root/test_plan_world.py::test_a_kernel_without_its_server field/test_success.py::test_output_into_a_pipe_that_nobody_reads_any_more field/test_after.py::test_what_a_restore_brings_back_and_what_not
S09 | cpu | Two copies run at once                                            | root/test_trouble.py::test_a_job_that_still_runs_is_named flow/test_target.py::test_a_second_restore_knows_of_the_first field/test_after.py::test_what_a_restore_brings_back_and_what_not
S11 | cpu | Stale identity inside the process                                 | root/test_plan_world.py::test_a_job_that_ends_with_its_parent unit/flow/test_target_rules.py::test_one_change_is_one_finding[identity]
S12 | cpu | A "kept" connection whose peer was told it is closed              | root/test_trouble.py::test_connections_live_through_a_dump_that_fails unit/flow/test_target_rules.py::test_one_change_is_one_finding[closed] unit/flow/test_target_rules.py::test_one_change_is_one_finding[kept] field/test_after.py::test_a_connection_that_its_peer_gave_up
S13 | cpu | The look afterwards measures the wrong thing                      | field/test_order.py::test_another_process_in_place_of_the_restored_one field/test_after.py::test_a_fresh_start_is_no_restore
S14 | cpu | Output written after the checkpoint                               | unit/flow/test_plan_world.py::test_outputs_of_a_job_that_goes_on root/test_jobs.py::test_leave_running_and_several_restores field/test_success.py::test_output_that_will_be_written_twice
"""

MARKS: Final = {"cpu": "cpu-reproducible", "gpu": "gpu-only"}


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    id: str
    mark: str
    title: str
    nodes: tuple[str, ...]
    verdict: str


def _case(line: str) -> Case:
    id_, mark, title, shown = (part.strip() for part in line.split("|", 3))
    nodes, _, verdict = shown.partition("verdict:")
    return Case(id_, MARKS[mark], title, _nodes(nodes), verdict.strip())


def _nodes(text: str) -> tuple[str, ...]:
    """Split at blanks, but not at those of a parameter."""
    found: list[str] = []
    for word in text.split():
        if found and found[-1].count("[") > found[-1].count("]"):
            found[-1] += " " + word
        else:
            found.append(word)
    return tuple(found)


CASES: Final = tuple(_case(line) for line in TABLE.strip().splitlines())

"""Which CPU flags a restored program can depend on: all but those that only a kernel can use.

A program may have chosen code for any instruction that the old CPU had, so every flag counts
unless it is known here to be invisible to programs. A flag of a future CPU counts too: a
refusal that can be overridden is better than SIGILL in the middle of a night.
"""

from __future__ import annotations

_PAGING_AND_INTERRUPTS = """
    vme de pse pae mce apic mtrr pge mca pat pse36 nx pdpe1gb pcid invpcid invpcid_single smep smap
    x2apic msr umip extapic xtopology topoext la57 lam fred lkgs tsc_deadline_timer tsc_adjust
    arat ss xsaves cr8_legacy nodeid_msr cpuid cpuid_fault ring3mwait wbnoinvd tme pconfig mktme sme
    sev sev_es sev_snp debug_swap coherency_sfence_clflush invlpgb
"""
_POWER_AND_HEAT = """
    acpi tm tm2 est dtherm ida pln pts epb hfi cpb hw_pstate cppc aperfmperf eist hwp hwp_notify
    hwp_act_window hwp_epp hwp_pkg_req skip_reboot monitor proc_feedback pbe
"""
_VIRTUALISATION = """
    vmx svm hypervisor vmmcall tpr_shadow vnmi flexpriority ept vpid ept_ad npt lbrv svm_lock
    nrip_save tsc_scale vmcb_clean flushbyasid decodeassists pausefilter pfthreshold avic
    v_vmsave_vmload vgif x2avic v_spec_ctrl ept_mode_based_exec xenpv skinit osvw idle_hlt
"""
_MITIGATIONS = """
    pti kaiser ibrs ibpb stibp ssbd virt_ssbd amd_ssb_disable ssbs ssb_no ibrs_enhanced autoibrs
    retpoline md_clear flush_l1d arch_capabilities core_capabilities spec_ctrl tsx_force_abort
    split_lock_detect bus_lock_detect overflow_recov succor smca srso amd_psfd ibs rrsba
    srbds_ctrl mds_no rdcl_no bhi_ctrl intel_ppin brs sbpb
"""
_COUNTING_AND_SHARING = """
    dts dtes64 ds_cpl pebs bts arch_perfmon pdcm perfctr_core perfctr_nb perfctr_llc bpext ptsc
    perfmon_v2 amd_lbr_v2 amd_lbr_pmc_freeze arch_lbr intel_pt rdt_a cqm cqm_llc cqm_occup_llc
    cqm_mbm_total cqm_mbm_local cat_l2 cat_l3 cdp_l2 cdp_l3 mba smba bmec abmc xtpr sdbg smx cid
    cmp_legacy extd_apicid cnxt_id tsc_known_freq constant_tsc nonstop_tsc nonstop_tsc_s3
    tsc_reliable rep_good amd_dcm up art mp perfctr_l2 ht
"""

UNSEEN = frozenset(
    (
        _PAGING_AND_INTERRUPTS
        + _POWER_AND_HEAT
        + _VIRTUALISATION
        + _MITIGATIONS
        + _COUNTING_AND_SHARING
    ).split()
)


def missing(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags in `old` that a program can depend on and `new` has not, sorted."""
    return tuple(sorted(set(old) - set(new) - UNSEEN))

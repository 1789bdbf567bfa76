// The program of first_process.py, which has its machine code; a test assembles this and compares.
        mov     x8, 134                 // rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8)
        mov     x0, 17
        adr     x1, action
        mov     x2, 0
        mov     x3, 8
        svc     0

        mov     x8, 64                  // write(1, "\x01", 1)
        mov     x0, 1
        adr     x1, action
        mov     x2, 1
        svc     0
        cmp     x0, 1
        b.ne    alone

        mov     x8, 436                 // close_range(0, ~0, 0)
        mov     x0, 0
        mov     w1, ~0
        mov     x2, 0
        svc     0

sleep:  mov     x8, 73                  // for want of pause, ppoll(NULL, 0, NULL, NULL, 0)
        mov     x0, 0
        mov     x1, 0
        mov     x2, 0
        mov     x3, 0
        mov     x4, 0
        svc     0
        b       sleep

alone:  mov     x8, 93                  // exit(1)
        mov     x0, 1
        svc     0

        .balign 8
action: .quad   1, 0, 0, 0              // SIG_IGN, no flags, no restorer, no mask; its first byte is written

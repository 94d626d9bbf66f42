"""The demo: one real engine, the same arrivals under fcfs and under learned weights."""

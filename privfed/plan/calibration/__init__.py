"""What `privfed calibrate` answers: any one of noise, rounds, cohort or epsilon from the others."""
